"""An optimizer for the embedding, and another one for the matrix of an untied head."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coupled_adam_bench.optim.build import build_optimizers
from coupled_adam_bench.study.plan import make_plan, plan_from_json
from coupled_adam_bench.study.settings import PerMatrixSettings, Training, parse_study
from coupled_adam_bench.training.checks import custom_optimizers

TRAINING = Training(
    seq_len=8,
    batch_sequences=2,
    warmup_steps=1,
    beta1=0.9,
    beta2=0.95,
    eps=1e-8,
    embedding_weight_decay=0.3,
)
LR = 0.01
LION = {
    "name": "custom",
    "path": "pytorch_optimizer.Lion",
    "key": "lion",
    "label": "Lion",
    "lr_factor": 0.3,
}
PAIRS = [
    {"embedding": "ember", "head": "adamw"},
    {
        "embedding": "coupled_adam",
        "head": {"name": "coupled_adam", "beta2": 0.8, "mu_centering": True},
    },
    {
        "embedding": {"name": "sgd", "lr_factor": 100},
        "head": {"name": "coupled_adam", "lr_factor": 0.5},
    },
    {
        "embedding": {"name": "adamw", "amsgrad": True},
        "head": LION | {"z_loss": 1e-4, "soft_cap": 30},
    },
]
SCALE = {
    "embedding": {"name": "normalized_sgd", "by": "column"},
    "head": {"name": "normalized_sgd", "by": "row", "momentum": 0.9},
}
OTHERS = [SCALE, {"embedding": {"name": "oblique_sgd", "lr_factor": 10}, "head": "adam_mini"}]


class Matrices(nn.Module):
    """An embedding, a head and something else, in float64."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        for name, shape in (("embedding", (7, 3)), ("head", (7, 3)), ("other", (3, 3))):
            self.register_parameter(
                name, nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))
            )


def coupled_step(weight, grad, moments, step, lr, betas, decay):
    """Coupled Adam of the paper, by hand: the second moment is averaged over the rows (Sec. 4)."""
    first, second = moments
    first += (1 - betas[0]) * (grad - first)
    second += (1 - betas[1]) * (grad.square().mean(0) - second)
    denominator = (second / (1 - betas[1] ** step)).sqrt() + TRAINING.eps
    weight -= lr * decay * weight + lr * first / (1 - betas[0] ** step) / denominator


@pytest.mark.parametrize("coupled", ["embedding", "head"])
def test_each_matrix_has_its_own_rule_and_all_are_clipped_together(coupled):
    """In float64 over 300 steps: torch's AdamW for one matrix, and the paper's rule by hand for the
    other."""
    entries = {
        coupled: {"name": "coupled_adam", "lr_factor": 2},
        "head" if coupled == "embedding" else "embedding": {
            "name": "adamw",
            "lr_factor": 0.5,
            "beta1": 0.5,
            "beta2": 0.8,
            "weight_decay": 0.1,
        },
    }
    ours, expected = Matrices(), Matrices()
    optimizer = PerMatrixSettings(**entries)
    built = build_optimizers(ours, [ours.embedding, ours.head], optimizer, TRAINING, LR)
    adam_on = expected.head if coupled == "embedding" else expected.embedding
    by_hand = expected.get_parameter(coupled).detach()
    adam = torch.optim.AdamW(
        [adam_on], lr=0.5 * LR, betas=(0.5, 0.8), eps=TRAINING.eps, weight_decay=0.1
    )
    core = torch.optim.AdamW(
        [expected.other], lr=LR, betas=(0.9, 0.95), eps=TRAINING.eps, weight_decay=0.1
    )
    moments = torch.zeros(7, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    for step in range(1, 301):
        for mine, other in zip(ours.parameters(), expected.parameters(), strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator, dtype=torch.float64)
            other.grad = mine.grad.clone()
        norm = built.clip_grad_norm_(ours.parameters(), 2.0)
        torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(expected.parameters(), 2.0))
        built.step()
        adam.step()
        core.step()
        coupled_step(
            by_hand, expected.get_parameter(coupled).grad, moments, step, 2 * LR, (0.9, 0.95), 0.3
        )
    for mine, other in zip(ours.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-10)


def untied(tiny_study: Any, steps: int, pairs: Any = PAIRS, **execution: Any) -> dict[str, Any]:
    settings: dict[str, Any] = tiny_study()
    settings["models"][0]["tied"] = False
    settings["grid"][0] |= {
        "table": None,
        "optimizers": pairs,
        "tokens": [{"steps": steps}],
        "seeds": [1],
    }
    settings["execution"] |= execution
    return settings


def test_the_same_rule_for_both_is_the_single_optimizer(make_workspace, nursery, tiny_study):
    curves = []
    for entry in ("adamw", {"embedding": "adamw", "head": "adamw"}):
        settings = untied(tiny_study, 20)
        settings["grid"][0]["optimizers"] = [entry]
        workspace = nursery.train(make_workspace(settings, f"number-{len(curves)}"))
        (history,) = [
            (workspace.run_dir(cell) / "history.jsonl").read_text() for cell in workspace.plan.cells
        ]
        curves.append([json.loads(line)["loss"] for line in history.splitlines()])
    assert curves[0] == curves[1]


def test_names_tell_both(tiny_study):
    study = parse_study(untied(tiny_study, 12))
    assert [(row.key, row.label) for row in study.grid[0].rows] == [
        ("ember_head-adamw", "Ember, head: Adam"),
        (
            "coupled_adam_head-coupled_adam_b2-0.8_mucenter",
            "Coupled Adam, head: Coupled Adam, beta2 = 0.8, mu-centering",
        ),
        ("sgd_f100_head-coupled_adam_f0.5", "SGD, f = 100, head: Coupled Adam, f = 0.5"),
        ("adamw_amsgrad_head-lion", "Adam, AMSGrad, head: Lion"),
    ]
    plan = make_plan(study)
    assert [cell.id.split("_s1_")[0].split("_", 2)[2] for cell in plan.cells.values()] == [
        row.key for row in study.grid[0].rows
    ]
    again = plan_from_json(json.loads(json.dumps(plan.to_json())), "plan")
    assert list(again.cells) == list(plan.cells)


def test_a_users_own_optimizer_of_one_matrix_is_tried_and_its_code_counts(tiny_study):
    study = parse_study(untied(tiny_study, 12))
    ((field, entry),) = custom_optimizers(study)
    assert (field, entry.key) == ("grid.0.optimizers.3.head", "lion")
    ids = list(make_plan(study).cells)
    assert list(make_plan(study).cells.values())[-1].optimizer.head.code
    settings = untied(tiny_study, 12)
    settings["grid"][0]["optimizers"] = [
        *PAIRS[:3],
        {**PAIRS[3], "head": LION | {"key": "cub", "soft_cap": 30}},
    ]
    others = list(make_plan(parse_study(settings)).cells)
    assert others[:3] == ids[:3]
    settings["grid"][0]["optimizers"][3]["head"]["z_loss"] = 1e-4
    assert (
        list(make_plan(parse_study(settings)).cells)[3].rpartition("_")[2]
        == ids[3].rpartition("_")[2]
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"embedding": {"name": "adamw", "z_loss": 1e-4}, "head": "adamw"},
            (
                "grid.0.optimizers.1.embedding.z_loss: z_loss is a setting of the head; give it to"
                " `head`"
            ),
        ),
        ({"embedding": "ember"}, "grid.0.optimizers.1.head: missing"),
        (
            {"embeding": "ember", "head": "adamw"},
            "grid.0.optimizers.1.embeding: unknown key; did you mean 'embedding'?",
        ),
        (
            {"embedding": "ember", "head": {"name": "adamw", "beta2": 1}},
            "grid.0.optimizers.1.head.beta2: must be less than 1 (got 1)",
        ),
        (
            {"embedding": "ember", "head": {"embedding": "adamw"}},
            "grid.0.optimizers.1.head.name: missing; one of",
        ),
    ],
)
def test_mistakes_are_named(tiny_study, entry, message):
    settings = untied(tiny_study, 12)
    settings["grid"][0]["optimizers"] = ["adamw", entry]
    with pytest.raises(ValueError, match="invalid setting") as error:
        parse_study(settings)
    assert message in str(error.value)


def test_a_tied_head_is_refused(tiny_study):
    settings = untied(tiny_study, 12)
    settings["models"][0]["tied"] = True
    name = settings["models"][0]["name"]
    expected = (
        "grid.0.optimizers: ember_head-adamw is for models whose head has a matrix of its own, and"
        f" that of {name} is the embedding; give one optimizer, or set `tied: false`"
    )
    with pytest.raises(ValueError, match="invalid setting") as error:
        parse_study(settings)
    assert expected in str(error.value)


def test_a_trial_reaches_the_settings_of_both(tiny_study):
    settings = untied(tiny_study, 12)
    grids = {
        "ember_head-adamw": {"embedding.lr_factor": [1, 3], "head.beta2": [0.9, 0.99]},
        "adamw_head-lion": {
            "head.arguments.betas": [[0.9, 0.99], [0.95, 0.98]],
            "learning_rate": [0.1, 0.2],
        },
    }
    pairs = [PAIRS[0], {"embedding": "adamw", "head": LION}]
    settings["grid"][0] |= {"optimizers": pairs, "tune": {"seeds": [9], "grids": grids}}
    study = parse_study(settings)
    plan = make_plan(study)
    assert [row.label for row in study.grid[0].rows] == [
        "Ember, head: Adam (tuned)",
        "Adam, head: Lion (tuned)",
    ]
    cells = list(plan.tuning_cells.values())
    tried = [
        (cell.optimizer.embedding.lr_factor, getattr(cell.optimizer.head, "beta2", None))
        for cell in cells
    ]
    assert tried[:4] == [(1, 0.9), (1, 0.99), (3, 0.9), (3, 0.99)]
    assert [cell.optimizer.head.arguments["betas"] for cell in cells[4:]] == [(0.9, 0.99)] * 2 + [
        (0.95, 0.98)
    ] * 2
    assert (
        len(
            [
                field
                for field, _ in custom_optimizers(study)
                if field.startswith("grid.0.tune.grids.")
            ]
        )
        == 4
    )
    chosen = plan.with_choices(
        {name: tuning.candidates[2].settings for name, tuning in plan.tunings.items()}
    )
    ember, lion = (cell.optimizer for cell in chosen.cells.values())
    assert (ember.key, ember.embedding.lr_factor, ember.head.beta2) == ("ember_head-adamw", 3, 0.9)
    assert (lion.key, lion.head.arguments["betas"]) == ("adamw_head-lion", (0.95, 0.98))
    for field in ("lr_factor", "embedding.name", "head.lr"):
        settings["grid"][0]["tune"]["grids"]["ember_head-adamw"] = {
            field: [1, 2],
            "head.beta2": [0.9, 0.99],
        }
        with pytest.raises(
            ValueError,
            match=r"no such setting to tune; allowed: learning_rate, embedding.mu_centering",
        ):
            parse_study(settings)


def test_stopped_cells_go_on_with_the_same_bits(tiny_study, goes_on):
    for cell in make_plan(parse_study(untied(tiny_study, 12, [*PAIRS, *OTHERS]))).cells.values():
        goes_on(cell, 7)


def test_cells_in_shards_have_the_same_curve(make_workspace, nursery, tiny_study):
    curves = []
    for processes, name in ((1, "alone"), (2, "shards")):
        execution = {"parallel": "fsdp", "train_processes": 2} if processes > 1 else {}
        workspace = make_workspace(untied(tiny_study, 10, [*PAIRS, *OTHERS], **execution), name)
        nursery.train(workspace)
        histories = [
            (workspace.run_dir(cell) / "history.jsonl").read_text() for cell in workspace.plan.cells
        ]
        curves.append(
            [[json.loads(line)["loss"] for line in history.splitlines()] for history in histories]
        )
    np.testing.assert_allclose(curves[1], curves[0], rtol=1e-5)
