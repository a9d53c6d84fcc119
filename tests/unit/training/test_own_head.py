"""An untied head that its optimizer treats in another way than the embedding."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from coupled_adam_bench.optim.build import build_embedding_optimizer
from coupled_adam_bench.study.config import Training, parse_study
from coupled_adam_bench.study.config.optimizers import AdamWSettings, CoupledAdamSettings, EmberSettings, SgdSettings
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.training.distributed import WorkerGroup

ALONE = WorkerGroup(torch.device("cpu"))
TRAINING = Training(
    seq_len=8, batch_sequences=2, warmup_steps=1, beta1=0.9, beta2=0.95, eps=1e-8, embedding_weight_decay=0.3
)
LR = 0.01
OWN = [
    {"name": "coupled_adam", "coupled": "input", "head_lr_factor": 0.5, "head_beta2": 0.8},
    {"name": "coupled_adam", "coupled": "head", "head_weight_decay": 0.2},
    {"name": "ember", "head_lr_factor": 2},
    {"name": "sgd", "lr_factor": 100, "head_lr_factor": 10},
]


def coupled_step(weight, grad, moments, step, lr, betas, decay):
    """Coupled Adam of the paper, by hand: the second moment is averaged over the rows (Sec. 4)."""
    first, second = moments
    first += (1 - betas[0]) * (grad - first)
    second += (1 - betas[1]) * (grad.square().mean(0) - second)
    denominator = (second / (1 - betas[1] ** step)).sqrt() + TRAINING.eps
    weight -= lr * decay * weight + lr * first / (1 - betas[0] ** step) / denominator


@pytest.mark.parametrize(("coupled", "uncoupled"), [("input", 1), ("head", 0)])
def test_one_matrix_is_coupled_and_the_other_has_adam(coupled: str, uncoupled: int) -> None:
    """In float64 over 1,000 steps: torch's AdamW for one matrix, and the paper's rule by hand for the other."""
    rng = torch.Generator().manual_seed(1)
    optimizer = CoupledAdamSettings(
        name="coupled_adam", coupled=coupled, lr_factor=2, head_lr_factor=0.5, head_beta1=0.5, head_beta2=0.8,
        head_weight_decay=0.1,
    )  # fmt: skip
    ours = [torch.randn(7, 3, generator=rng, dtype=torch.float64).requires_grad_() for _ in range(2)]
    expected = [weight.detach().clone().requires_grad_(index == uncoupled) for index, weight in enumerate(ours)]
    built = build_embedding_optimizer(ours, optimizer, TRAINING, LR)
    settings = [(2 * LR, (0.9, 0.95), 0.3), (0.5 * LR, (0.5, 0.8), 0.1)]
    lr, betas, decay = settings[uncoupled]
    adam = torch.optim.AdamW([expected[uncoupled]], lr=lr, betas=betas, eps=TRAINING.eps, weight_decay=decay)
    moments = torch.zeros(7, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for step in range(1, 1001):
        for weight in ours:
            weight.grad = torch.randn(7, 3, generator=rng, dtype=torch.float64)
        built.step()
        expected[uncoupled].grad = ours[uncoupled].grad
        adam.step()
        lr, betas, decay = settings[1 - uncoupled]
        coupled_step(expected[1 - uncoupled], ours[1 - uncoupled].grad, moments, step, lr, betas, decay)
    for weight, by_hand in zip(ours, expected, strict=True):
        torch.testing.assert_close(weight.detach(), by_hand.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("optimizer", "key", "label"),
    [
        (
            AdamWSettings(name="adamw", lr_factor=3, head_lr_factor=0.5, head_weight_decay=0),
            "adamw_f3_hf0.5_hwd0", "Adam, f = 3, head f = 0.5, head wd = 0",
        ),
        (
            CoupledAdamSettings(name="coupled_adam", head_beta1=0.5, head_beta2=0.8, coupled="head"),
            "coupled_adam_hb1-0.5_hb2-0.8_head", "Coupled Adam, head beta1 = 0.5, head beta2 = 0.8, head alone",
        ),
        (EmberSettings(name="ember", head_lr_factor=2), "ember_hf2", "Ember, head f = 2"),
        (SgdSettings(name="sgd", lr_factor=9, head_lr_factor=2), "sgd_f9_hf2", "SGD, f = 9, head f = 2"),
    ],
)  # fmt: skip
def test_names_tell_what_the_head_has(optimizer: Any, key: str, label: str) -> None:
    assert (optimizer.key, optimizer.label) == (key, label)


@pytest.mark.parametrize(
    ("entries", "tune", "field"),
    [
        (["adamw", {"name": "coupled_adam", "coupled": "input"}], None, "coupled"),
        (["adamw", {"name": "coupled_adam", "head_beta2": 0.9}], None, "head_beta2"),
        (
            ["adamw", "coupled_adam"],
            {"seeds": [9], "grids": {name: {"head_lr_factor": [0.5, 1]} for name in ("adamw", "coupled_adam")}},
            "head_lr_factor",
        ),
    ],
)
def test_a_tied_head_has_none(tiny_study: Any, entries: Any, tune: Any, field: str) -> None:
    settings = tiny_study()
    settings["grid"][0] |= {"optimizers": entries} | ({"tune": tune} if tune else {})
    (name,) = settings["grid"][0]["models"]
    expected = f"grid.0.optimizers: {field} is for the matrix of a head that is not tied, and that of {name} is the "
    with pytest.raises(ValueError, match="tied: false") as error:
        parse_study(settings)
    assert expected in str(error.value)
    settings["models"][0]["tied"] = False
    parse_study(settings)


def untied(tiny_study: Any, steps: int, **execution: Any) -> dict[str, Any]:
    settings: dict[str, Any] = tiny_study()
    settings["models"][0]["tied"] = False
    settings["grid"][0] |= {"table": None, "optimizers": OWN, "tokens": [{"steps": steps}], "seeds": [1]}
    settings["execution"] |= execution
    return settings


def test_stopped_cells_go_on_with_the_same_bits(tiny_study: Any, goes_on: Any) -> None:
    for cell in make_plan(parse_study(untied(tiny_study, 12))).cells.values():
        goes_on(cell, 7)


def test_cells_in_shards_have_the_same_curve(make_workspace: Any, nursery: Any, tiny_study: Any) -> None:
    curves = []
    for processes, name in ((1, "alone"), (2, "shards")):
        execution = {"parallel": "fsdp", "train_processes": 2} if processes > 1 else {}
        workspace = make_workspace(untied(tiny_study, 20, **execution), name)
        nursery.train(workspace)
        histories = [(workspace.run_dir(cell) / "history.jsonl").read_text() for cell in workspace.plan.cells]
        curves.append([[json.loads(line)["loss"] for line in history.splitlines()] for history in histories])
    np.testing.assert_allclose(curves[1], curves[0], rtol=1e-5)


def test_a_cell_without_such_settings_keeps_its_id() -> None:
    assert CoupledAdamSettings(name="coupled_adam").model_dump() == {"name": "coupled_adam", "scale_exponent": 0}
    assert AdamWSettings(name="adamw", head_lr_factor=None).model_dump() == {"name": "adamw"}
