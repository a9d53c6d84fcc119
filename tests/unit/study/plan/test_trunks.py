"""Which cells share a trunk, and what it saves."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from planned import only

from coupled_adam_bench.study.catalogue import versions
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.plan.cells import Cell, stable_prefix
from coupled_adam_bench.study.settings import Training, parse_study


@pytest.fixture
def wsd(tiny_study: Callable[..., dict[str, Any]]) -> Callable[..., Plan]:
    def make(*steps: int, training: dict[str, Any] | None = None, **block: Any) -> Plan:
        settings = tiny_study(study="wsd")
        settings["training"] |= {"schedule": "wsd", **(training or {})}
        tokens = [{"steps": count} for count in steps]
        settings["grid"] = [
            {"models": ["nano"], "tokens": tokens, "optimizers": ["adamw"], "seeds": [1], **block}
        ]
        return make_plan(parse_study(settings))

    return make


def part_of(plan: Plan) -> Cell:
    (cell,) = plan.cells.values()
    part = stable_prefix(cell)
    assert part is not None
    return part


def test_cells_that_differ_in_d_share_the_steps_before_their_decay(wsd):
    plan = wsd(60, 20, 40)
    (trunk,) = plan.trunks.values()
    assert [cell.steps for cell in plan.cells.values()] == [60, 20, 40]
    assert [trunk.prefixes[cell].steps for cell in plan.cells] == [
        49,
        17,
        33,
    ]  # 12, 4 and 8 steps, the first at the peak
    assert trunk.branches == (17, 33, 49)
    assert (trunk.run.steps, trunk.run.training.schedule) == (49, "constant")
    assert list(plan.trunks) == [trunk.run.id]
    assert re.fullmatch(r"nano_stable_adamw_s1_[0-9a-f]{10}", trunk.run.id)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_other_schedules_have_none(schedule, wsd):
    plan = wsd(20, 40, training={"schedule": schedule})
    assert [stable_prefix(cell) for cell in plan.cells.values()] == [None, None]
    assert plan.trunks == {}


@pytest.mark.parametrize(
    ("steps", "training", "expected"),
    [
        (2, {"warmup_steps": 0, "decay_fraction": 1.0}, 1),
        (7, {"decay_fraction": 0.2}, 6),  # the decay is two steps, the first of them at the peak
        (20, {"decay_fraction": 0.75}, 6),  # the warmup of 5 and the first step of the decay
        (20, {"warmup_steps": 16}, 17),
    ],
)
def test_the_last_step_is_the_cell_s_own(steps, training, expected, wsd):
    (cell,) = wsd(steps, training=training).cells.values()
    part = stable_prefix(cell)
    assert part is not None
    assert part.steps == expected


def test_the_decay_is_not_in_a_trunk_s_id(wsd):
    reference = part_of(wsd(40)).id
    assert part_of(wsd(60)).id == reference
    assert part_of(wsd(40, training={"decay_fraction": 0.5, "min_lr_ratio": 0.0})).id == reference
    assert part_of(wsd(40, training={"min_learning_rate": 1e-5})).id == reference


CHANGES = {
    "seq_len": 8,
    "batch_sequences": 8,
    "beta1": 0.8,
    "beta2": 0.9,
    "eps": 1e-6,
    "weight_decay": 0.2,
    "embedding_weight_decay": 0.1,
    "grad_clip": 2.0,
    "warmup_steps": 6,
    "warmup_from": "zero",
    "data_order": "shuffled",
    "data_ranks": 2,
    "init": {"path": "torch.nn.init.Xavier"},
    "init_std": 0.01,
    "precision": "bf16",
    "core_optimizer": "muon",
    "norm_lr_factor": 0.5,
}


@pytest.mark.parametrize("name", list(CHANGES))
def test_the_rest_of_the_recipe_is(name, wsd):
    assert part_of(wsd(40, training={name: CHANGES[name]})).id != part_of(wsd(40)).id


def test_every_setting_of_the_recipe_is_tested_here():
    # With warmup_fraction the warmup depends on D, so wsd does not take it.
    others = {"schedule", "decay_fraction", "min_lr_ratio", "min_learning_rate", "warmup_fraction"}
    assert set(Training.model_fields) == set(CHANGES) | others


def test_model_seed_data_and_protocol_are_in_a_trunk_s_id(wsd, monkeypatch):
    plan = wsd(40)
    reference = part_of(plan).id
    assert part_of(wsd(40, seeds=[2])).id.rsplit("_", 1)[1] != reference.rsplit("_", 1)[1]
    assert (
        part_of(wsd(40, optimizers=["coupled_adam"])).id.rsplit("_", 1)[1]
        != reference.rsplit("_", 1)[1]
    )
    wider = only(plan).study.models[0].model_copy(update={"d_model": 16})
    assert (
        part_of(make_plan(only(plan).study.model_copy(update={"models": (wider,)}))).id != reference
    )
    data = only(plan).study.data.model_copy(update={"vocab_size": 128})
    assert part_of(make_plan(only(plan).study.model_copy(update={"data": data}))).id != reference
    monkeypatch.setattr(versions, "TRAIN", versions.TRAIN + 1)
    assert part_of(wsd(40)).id != reference
