"""The order ``pairs``: a text whose pairs of neighbouring tokens are a source, and the exact loss
on it."""

from typing import Any

import numpy as np
import pytest
import torch
from planned import only
from scipy import stats

from coupled_adam_bench.evaluation.held_out_loss import open_evaluator, open_validation
from coupled_adam_bench.models.contexts import contexts_of_tokens
from coupled_adam_bench.models.export import load_model
from coupled_adam_bench.report.table import build_tables
from coupled_adam_bench.results.collect import results_frame
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.decisions import decide
from coupled_adam_bench.statistics.occupancy import _of_text
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import Training, parse_study
from coupled_adam_bench.training.batches import Batches
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.jobs import train

CPU = torch.device("cpu")
TRAINING = Training(seq_len=50, batch_sequences=40, data_order="pairs")
TOKENS = np.random.default_rng(0).zipf(1.5, 3000).clip(max=20).astype(np.uint16)


def table_of(inputs: np.ndarray, targets: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """How often each pair occurs, by what its input and its target are."""
    table = np.zeros(shape)
    np.add.at(table, (inputs, targets), 1)
    return table


@pytest.fixture
def settings(tiny_study) -> dict[str, Any]:
    values = tiny_study()
    model = {"architecture": "contexts", "n_contexts": 8, "d_model": 8, "learning_rate": 0.01}
    values["models"] = [{"name": "nano", "tied": False} | model]
    values["training"]["data_order"] = "pairs"
    values["execution"]["eval_every"] = 30
    values["grid"][0] |= {"optimizers": ["adamw"], "seeds": [1]}
    del values["evaluation"]["downstream"], values["grid"][0]["table"]
    return values


def test_the_pairs_that_are_drawn_meet_the_table_of_the_text():
    batches = Batches(TOKENS, TRAINING, 3, WorkerGroup(CPU))
    drawn = [torch.stack(batches.get(step)) for step in range(20)]
    inputs, targets = torch.cat(drawn, 1).flatten(1).numpy()
    expected = table_of(TOKENS[:-1], TOKENS[1:], (21, 21)) / (len(TOKENS) - 1) * inputs.size
    found = table_of(inputs, targets, (21, 21))
    assert inputs.size == 40_000
    assert not found[expected == 0].any()
    often = expected > 20
    assert stats.chisquare(
        [*found[often], found[~often].sum()], [*expected[often], expected[~often].sum()]
    ).pvalue == pytest.approx(0.5, abs=0.49)
    # Neighbours in a sequence have nothing to do with each other: a target is not the next input.
    assert (drawn[0][0, :, 1:] == drawn[0][1, :, :-1]).double().mean() < 0.5


def test_a_batch_is_a_function_of_seed_step_and_position():
    whole = Batches(TOKENS, TRAINING, 1, WorkerGroup(CPU))
    batches = {step: torch.stack(whole.get(step)) for step in (0, 1, 7, 2)}
    for rank in range(4):
        part = Batches(TOKENS, TRAINING, 1, WorkerGroup(CPU, rank, 4))
        for step in (7, 0, 2):
            own = batches[step][:, rank * 10 : rank * 10 + 10]
            assert torch.equal(torch.stack(part.get(step)), own)
    assert not torch.equal(batches[0], batches[1])
    other = Batches(TOKENS, TRAINING, 2, WorkerGroup(CPU))
    assert not torch.equal(batches[0], torch.stack(other.get(0)))


@pytest.fixture
def trained(settings, tiny_data, tmp_path, monkeypatch) -> tuple[Plan, Cell]:
    monkeypatch.chdir(tmp_path)
    plan = make_plan(parse_study(settings))
    (cell,) = plan.cells.values()
    data = paths.data_dir(cell.data_id)
    data.parent.mkdir(parents=True)
    data.symlink_to(tiny_data)
    run = paths.run_dir(cell.id)
    assert train(cell, cell.study.execution, tiny_data, run, WorkerGroup(CPU)) == 0
    return plan, cell


def test_the_loss_is_the_exact_mean_over_all_pairs_of_the_source(trained, tiny_data):
    plan, cell = trained
    study, data_id = only(plan).study, only(plan).data_id
    folder = paths.run_dir(cell.id) / "model"
    model = load_model(folder).double()
    contexts_V = contexts_of_tokens(model.frequent_tokens, cell.vocab_size).numpy()
    tokens = np.fromfile(tiny_data / "train.bin", "<u2").astype(np.int64)
    share_KV = table_of(contexts_V[tokens[:-1]], tokens[1:], (8, cell.vocab_size))
    share_KV /= share_KV.sum()
    with torch.no_grad():
        logits_KV = model.ln_f(model.vectors()) @ model.head_weight.T
    expected = -(share_KV * torch.log_softmax(logits_KV, 1).numpy()).sum()

    with open_evaluator(study, data_id, "cpu") as evaluate:
        found = {row["metric"]: row["value"] for row in evaluate(cell, folder).results}
    with open_validation(study, data_id, "cpu") as validate:
        (validation,) = validate(cell, folder).results
    assert found["loss"] == pytest.approx(expected, rel=1e-6)
    assert validation["value"] == pytest.approx(expected, rel=1e-6)
    assert found["n_predicted_tokens"] == len(tokens) - 1

    # No model is better than the source, whose own loss is its entropy given the context.
    given_K1 = share_KV.sum(1, keepdims=True)
    entropy = -np.sum(share_KV * np.log(share_KV / given_K1, where=share_KV > 0, out=0 * share_KV))
    assert entropy < found["loss"] < np.log(cell.vocab_size)


def test_a_source_is_no_sample_of_documents_and_has_no_passes(trained):
    plan, cell = trained
    folder = paths.run_dir(cell.id) / "model"
    with open_evaluator(only(plan).study, only(plan).data_id, "cpu") as evaluate:
        found = {row["metric"]: row["value"] for row in evaluate(cell, folder).results}
    assert found["n_documents"] == 1
    # A model with exactly the frequencies of the source has no error of calibration.
    assert found["pooled_calibration_rarest_of_text"] == pytest.approx(0, abs=1e-2)
    assert np.isnan(_of_text(cell, paths.RESULTS)[0])


def test_a_table_says_that_its_losses_are_exact(settings):
    columns = {"title": "Losses", "comparison": "each_other", "columns": ["loss"]}
    settings["tables"] = {"own": columns}
    settings["grid"][0] |= {
        "table": "own",
        "optimizers": ["adamw", "coupled_adam"],
        "seeds": [1, 2],
    }
    plan = make_plan(parse_study(settings))
    sizes = {"loss": 5.0, "n_predicted_tokens": 12345.0, "n_documents": 1.0}
    rows = [
        (cell, "test", name, value, "1")
        for cell in plan.cells.values()
        for name, value in sizes.items()
    ]
    study = StudyResults(layout_of(plan), results_frame(plan, rows))
    (table,) = build_tables(decide(study))
    assert "Losses are over all 12,345 pairs of their source, so they are exact." in table.notes
    assert not any("few" in note for note in table.notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"models": [{"name": "t", "n_layer": 1, "n_head": 2, "d_model": 8}]},
            "training.data_order: 'pairs' draws a token with the one before it alone, and t reads",
        ),
        (
            {"evaluation": {"word_similarity": [], "test_loss": {"windows": "random"}}},
            "evaluation.test_loss.windows: 'random', but with training.data_order 'pairs'",
        ),
    ],
)
def test_what_does_not_go_with_a_source_of_pairs_is_refused(settings, changes, message):
    if "models" in changes:
        changes["models"][0]["learning_rate"] = 0.01
        settings["grid"][0]["models"] = ["t"]
    with pytest.raises(ValueError, match=message):
        parse_study(settings | changes)


def test_a_run_may_draw_more_tokens_than_the_text_has(settings):
    del settings["data"]["source"]["n_tokens"]
    settings["data"] |= {"source": {"kind": "files"}, "tokenizer": "bpe", "vocab_size": 300}
    settings["data"]["max_tokens"] = 500
    settings["paths"] = {"text": "text"}
    settings["evaluation"] = {"word_similarity": []}
    parse_study(settings)
    settings["training"]["data_order"] = "with_replacement"
    with pytest.raises(ValueError, match=r"data\.max_tokens: 500 leaves"):
        parse_study(settings)
