import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coupled_adam_bench.evaluation import held_out_loss as loss_stage
from coupled_adam_bench.evaluation.held_out_loss import (
    all_starts,
    mean_loss,
    open_evaluator,
    random_offsets,
    window_starts,
    windows_at,
)
from coupled_adam_bench.evaluation.settings import test_loss as loss_settings
from coupled_adam_bench.models.export import load_model
from coupled_adam_bench.records.stored import Evaluation
from coupled_adam_bench.store import paths
from coupled_adam_bench.study import settings

RANDOM = settings.TestLoss(split="val", windows="random", n_batches=5, batch_sequences=3)


def n_predicted_of(found: Evaluation) -> float:
    return next(row["value"] for row in found.results if row["metric"] == "n_predicted_tokens")


def all_windows(tokens: np.ndarray, seq_len: int, batch_sequences: int) -> list:
    return list(windows_at(tokens, all_starts(len(tokens), seq_len), seq_len, batch_sequences))


@given(st.integers(2, 60), st.integers(1, 9), st.integers(1, 5))
def test_each_token_but_the_first_is_a_target_once(n_tokens, seq_len, batch_sequences):
    tokens = np.arange(100, 100 + n_tokens, dtype=np.uint16)
    found = all_windows(tokens, seq_len, batch_sequences)
    targets = np.concatenate([targets.ravel() for _, targets in found])
    np.testing.assert_array_equal(targets, tokens[1:])
    for inputs, targets in found:
        np.testing.assert_array_equal(inputs + 1, targets)
        assert inputs.dtype == targets.dtype == np.int64
        assert 1 <= inputs.shape[0] <= batch_sequences and 1 <= inputs.shape[1] <= seq_len
    assert all(inputs.shape[1] == seq_len for inputs, _ in found[:-1])


def loss_in_plain_words(model, tokens: np.ndarray) -> float:
    """Each token from its logits in float64, its context cut at multiples of the sequence
    length."""
    losses = []
    for position in range(1, len(tokens)):
        start = (position - 1) // model.seq_len * model.seq_len
        context = torch.tensor(tokens[start:position].astype(np.int64))[None]
        with torch.no_grad():
            logits = model.double().logits(context)[0, -1].tolist()
        largest = max(logits)
        log_z = largest + math.log(math.fsum(math.exp(x - largest) for x in logits))
        losses.append(log_z - logits[int(tokens[position])])
    return math.fsum(losses) / len(losses)


@pytest.mark.parametrize(
    "n_tokens", [2, 40, 41, 42, 175]
)  # shorter than, as long as and longer than windows of 40
def test_against_the_definition_for_any_batch_size(part, n_tokens):
    model = load_model(paths.run_dir(next(iter(part.cells))) / "model")
    tokens = np.random.default_rng(0).integers(0, 121, n_tokens).astype(np.uint16)
    found = {
        size: mean_loss(model, all_windows(tokens, 40, size), "cpu", False)
        for size in (1, 2, 3, 16)
    }
    expected = loss_in_plain_words(model, tokens)
    for loss, n_predicted in found.values():
        assert loss == pytest.approx(expected, rel=1e-6)
        assert n_predicted == n_tokens - 1


def test_too_few_tokens_are_refused():
    with pytest.raises(
        ValueError,
        match=r"split: test has 1 token\(s\).*at least 2; raise data\.split\.test_fraction",
    ):
        window_starts(1, 40, settings.TestLoss(), 1)
    with pytest.raises(
        ValueError,
        match=r"split: val has 40 token\(s\).*at least 41; raise data\.split\.val_fraction",
    ):
        window_starts(40, 40, RANDOM, 1)
    assert window_starts(41, 40, RANDOM, 1).tolist() == 15 * [0]


def test_random_windows_are_those_of_nanogpt():
    """Draw for draw what its ``get_batch`` does on a CPU, with torch's global generator."""
    tokens = np.random.default_rng(3).integers(0, 121, 300).astype(np.uint16)
    found = list(windows_at(tokens, window_starts(300, 40, RANDOM, 7), 40, batch_sequences=3))
    assert len(found) == 5
    with torch.random.fork_rng():
        torch.manual_seed(7)
        for inputs, targets in found:
            ix = torch.randint(len(tokens) - 40, (3,))
            np.testing.assert_array_equal(inputs, np.stack([tokens[i : i + 40] for i in ix]))
            np.testing.assert_array_equal(
                targets, np.stack([tokens[i + 1 : i + 1 + 40] for i in ix])
            )


def test_random_offsets_depend_on_the_seed_and_on_nothing_else():
    first = random_offsets(300, 40, RANDOM, 1)
    state = torch.get_rng_state()
    torch.rand(9)
    np.testing.assert_array_equal(random_offsets(300, 40, RANDOM, 1), first)
    torch.set_rng_state(state)
    assert first.shape == (15,) and first.dtype == np.int64
    assert (random_offsets(300, 40, RANDOM, 2) != first).any()
    assert len(random_offsets(300, 40, RANDOM, 2**64 + 1)) == 15  # seeds have no largest
    many = random_offsets(43, 40, RANDOM.model_copy(update={"n_batches": 100}), 1)
    assert set(many.tolist()) == {0, 1, 2}  # the last window ends with the last token


@pytest.mark.fault(
    "evaluation",
    "the test loss of one model rests on another number of windows than that of the others",
    "evaluation.test_loss.batch_sequences_of gives each model its own, and is part of what"
    " evaluations are kept by",
)
@pytest.mark.parametrize(
    "changes",
    [
        {"windows": "all", "split": "test"},
        {"split": "test"},
        {"split": "val"},
        {"batch_sequences_of": {"m": 2}},
        {"batch_sequences_of": {"gpt2-760m": 2}},
    ],
)
def test_split_and_windows_are_the_study_s_and_the_seed_is_the_cell_s(part, changes):
    cell_id, cell = next(iter(part.cells.items()))
    folder, test_loss = paths.run_dir(cell_id) / "model", RANDOM.model_copy(update=changes)
    evaluation = part.study.evaluation.model_copy(update={"test_loss": test_loss})
    study = part.study.model_copy(update={"evaluation": evaluation})
    file = paths.data_dir(part.data_id) / f"{test_loss.split}.bin"
    tokens = np.fromfile(file, dtype="<u2")
    values = []
    with open_evaluator(study, part.data_id, "auto") as evaluate:
        for seed in (cell.seed, cell.seed + 1):
            found = evaluate(replace(cell, seed=seed), folder)
            starts = window_starts(len(tokens), 40, test_loss.for_model("m"), seed)
            expected, n_predicted = mean_loss(
                load_model(folder), windows_at(tokens, starts, 40, 7), "cpu", False
            )
            row, *_ = found.results
            assert row == {
                "task": "test",
                "metric": "loss",
                "value": pytest.approx(expected, rel=1e-6),
                "unit": "nat/token",
            }
            values.append(row["value"])
            sequences = 2 if changes.get("batch_sequences_of", {}).get("m") else 3
            assert (
                n_predicted_of(found)
                == n_predicted
                == (499 if test_loss.windows == "all" else 5 * sequences * 40)
            )
    assert (values[0] != values[1]) == (test_loss.windows == "random")
    of_random = (
        {"n_batches", "batch_sequences", "batch_sequences_of"}
        if test_loss.windows == "random"
        else set()
    )
    assert (
        loss_settings(study, part.data_id).keys() == {"split", "windows", "precision"} | of_random
    )


# What a tuning chooses by.


def test_the_validation_loss_is_that_of_every_token_of_the_split_val(part):
    tokens = np.random.default_rng(5).integers(0, 121, 175).astype("<u2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_stage, "open_tokens", lambda _folder, split: {"val": tokens}[split])
        for cell_id, cell in list(part.cells.items())[:2]:
            folder = paths.run_dir(cell_id) / "model"
            with loss_stage.open_validation(part.study, part.data_id, "cpu") as evaluate:
                found = evaluate(cell, folder)
            expected = loss_in_plain_words(load_model(folder), tokens)
            (row,) = found.results
            assert (row["task"], row["metric"], row["unit"]) == ("val", "loss", "nat/token")
            assert row["value"] == pytest.approx(expected, rel=1e-6)
            assert found.detail["n_predicted_tokens"] == 174


def test_a_split_val_of_one_token_has_no_validation_loss(part, monkeypatch):
    monkeypatch.setattr(loss_stage, "open_tokens", lambda _folder, _split: np.zeros(1, dtype="<u2"))
    with (
        pytest.raises(
            ValueError, match=r"data\.split\.val_fraction: the split val has 1 token\(s\), too few"
        ),
        loss_stage.open_validation(part.study, part.data_id, "cpu"),
    ):
        pass
