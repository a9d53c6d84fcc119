"""The shipped studies of modded-nanogpt's optimizer track have the settings of its
train_gpt_simple.py at f411b3d."""

import math
from pathlib import Path

import pytest
import torch
from research.plugins.token_files import TokenFiles

from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.optim.build import build_optimizers
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.plan.schedule import learning_rate_factor
from coupled_adam_bench.study.settings import Study, load_study

CONFIG = Path(__file__).parents[4] / "research" / "track3"
TRAIN_STEPS, COOLDOWN_FRAC = 3250, 0.7


@pytest.fixture(scope="module")
def study() -> Study:
    return load_study(CONFIG / "track3.yaml")


@pytest.fixture(scope="module")
def cells(study: Study) -> dict[str, Cell]:
    return {cell.optimizer.embedding.name: cell for cell in make_plan(study).cells.values()}


def test_the_runs(cells):
    assert list(cells) == ["adamw", "coupled_adam", "ember"]
    assert {cell.steps for cell in cells.values()} == {TRAIN_STEPS}
    assert {cell.n_tokens for cell in cells.values()} == {TRAIN_STEPS * 8 * 64 * 1024}
    (cell, *_) = cells.values()
    # Without biases: 5 d_model + d_ffn of each layer and one for each token.
    assert cell.n_params == 2 * 50304 * 768 + 12 * (12 * 768**2 + 2 * 768) + 2 * 768


def test_optimizers_have_the_rates_betas_and_decays_of_the_baseline(cells):
    cell = cells["adamw"]
    with torch.device("meta"):
        model = build_model(cell.model, 50304, 1024, soft_cap=15.0)
    built = build_optimizers(
        model, model.embedding_parameters(), cell.optimizer, cell.training, cell.model.learning_rate
    )
    groups = {name: optimizer.param_groups for name, optimizer in built.by_name().items()}
    (embedding,), (head,) = groups["embedding"], groups["head"]
    (muon,) = groups["matrices"]
    norms = groups["core"][1]
    assert [group["lr"] for group in (embedding, head, norms, muon)] == pytest.approx(
        [0.7, 0.004, 0.015, 0.025]
    )
    assert [group["weight_decay"] for group in (embedding, head, muon)] == [0.001, 0.001, 0.05]
    for group in (embedding, head, norms):
        assert group["betas"] == (0.8, 0.95)
        assert group["eps"] * 8 * 64 * 1024 == pytest.approx(
            1e-10, rel=0.01
        )  # their gradients are sums
    assert (muon["momentum"], muon["nesterov"], len(muon["params"])) == (0.95, True, 12 * 6)
    assert {tuple(matrix.shape) for matrix in muon["params"]} == {
        (768, 768),
        (3072, 768),
        (768, 3072),
    }


def test_the_schedule_is_that_of_the_baseline(study):
    for step in (0, 1, 974, 975, 976, 2000, TRAIN_STEPS - 1):
        progress = step / TRAIN_STEPS
        eta = 1.0 if progress < 1 - COOLDOWN_FRAC else (1 - progress) / COOLDOWN_FRAC
        assert learning_rate_factor(step, TRAIN_STEPS, study.training, 0.025) == pytest.approx(eta)


def test_its_positions_turn_by_the_frequencies_of_the_baseline(study):
    (model,) = study.models
    dim = model.d_model // model.n_head
    theirs = (1 / 1024) ** torch.linspace(0, 1, dim // 4)
    rotary = model.architecture.arguments
    n_pairs = round(rotary["rope_fraction"] * dim) // 2
    ours = rotary["rope_base"] ** (-torch.arange(n_pairs) / n_pairs)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)


def test_it_is_judged_by_the_rule_of_the_track(study):
    (target,) = study.statistics.files
    assert (target.path, target.arguments) == (
        "research.plugins.target.Target",
        {"loss": 3.28, "sd": 0.0013},
    )
    assert study.execution.eval_sequences is not None
    assert study.execution.eval_sequences * study.training.seq_len == 20 * 524288
    assert study.data.source.path == "research.plugins.token_files.TokenFiles"
    assert TokenFiles([Path("fineweb_train_1.bin"), Path("fineweb_val_0.bin")]).val_tokens == (
        20 * 524288
    )
    assert study.evaluation.test_loss.split == "val"


def test_the_quick_one_is_shorter_and_no_more(study):
    whole, quick = (each.model_dump() for each in (study, load_study(CONFIG / "track3_quick.yaml")))
    different = {name for name in whole if whole[name] != quick[name]}
    assert different == {"study", "title", "tables", "grid", "statistics"}
    (block,), (short,) = whole["grid"], quick["grid"]
    assert {name for name in block if block[name] != short[name]} == {"table", "tokens"}
    assert math.isclose(short["tokens"][0]["steps"] / TRAIN_STEPS, 0.05, rel_tol=0.02)
