"""Cells of Ember, of AMSGrad, and with settings of the head: on one process and in shards, stopped
and gone on with."""

import json

import numpy as np
import pytest
import torch
from planned import only

from coupled_adam_bench.models.export import load_model
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.trainer import Trainer

ALONE = WorkerGroup(torch.device("cpu"))
RIVALS = [
    "ember",
    {"name": "adamw", "amsgrad": True, "mu_centering": True},
    {"name": "coupled_adam", "beta1": 0.5, "z_loss": 0.01, "soft_cap": 2.0},
    {"name": "sgd", "lr_factor": 100, "mu_loss": 0.1},
]


def settings_of(tiny_study, optimizers=RIVALS, steps=10, precision="fp32", **execution):
    settings = tiny_study()
    settings["training"]["precision"] = precision
    (model,) = settings["models"]
    settings["models"] = [model, model | {"name": "untied", "tied": False}]
    settings["grid"][0] |= {
        "table": None,
        "optimizers": [*optimizers],
        "tokens": [{"steps": steps}],
        "seeds": [1],
    }
    settings["grid"][0]["models"] = [each["name"] for each in settings["models"]]
    settings["execution"] |= execution
    return settings


def curves_of(workspace):
    histories = [
        (workspace.run_dir(cell) / "history.jsonl").read_text() for cell in workspace.plan.cells
    ]
    return np.array(
        [[json.loads(line)["loss"] for line in history.splitlines()] for history in histories]
    )


def test_cells_in_shards_have_the_same_curve_and_go_on_alone(make_workspace, nursery, tiny_study):
    alone = nursery.train(make_workspace(settings_of(tiny_study), "alone"))
    execution = {"parallel": "fsdp", "train_processes": 2, "checkpoint_every": 5}
    shards = nursery.train(make_workspace(settings_of(tiny_study, **execution), "shards"))
    np.testing.assert_allclose(curves_of(shards), curves_of(alone), rtol=1e-5)
    rest = make_workspace(settings_of(tiny_study), "rest")
    for cell in rest.plan.cells:
        checkpoints = rest.run_dir(cell) / "checkpoints"
        checkpoints.mkdir(parents=True)
        (shards.run_dir(cell) / "checkpoints/step-00000005").rename(checkpoints / "step-00000005")
    nursery.train(rest)
    np.testing.assert_allclose(curves_of(rest), curves_of(alone), rtol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_stopped_cells_go_on_with_the_same_bits(precision, tiny_study, goes_on):
    for cell in make_plan(
        parse_study(settings_of(tiny_study, steps=12, precision=precision))
    ).cells.values():
        model = load_model(goes_on(cell, 7) / "model")
        assert model.soft_cap == cell.optimizer.soft_cap
        weight = model.head_weight.detach()
        assert (
            weight.mean(0).norm() < 1e-6 * weight.norm(dim=1).mean()
        ) == cell.optimizer.mu_centering


def test_the_history_has_the_cross_entropy_without_what_is_added(tiny_study, tiny_data, tmp_path):
    """At the same weights, those of the start, the logged loss is the same with and without z-loss
    and mu-loss."""
    optimizers = ["adamw", {"name": "adamw", "z_loss": 0.5}, {"name": "adamw", "mu_loss": 10}]
    plan = make_plan(parse_study(settings_of(tiny_study, optimizers)))
    losses, norms = [], []
    for cell in plan.cells.values():
        trainer = Trainer(cell, only(plan).study.execution, tiny_data, tmp_path / cell.id, ALONE)
        loss, norm = trainer.train_step(0)
        losses.append(loss.item())
        norms.append(norm.item())
    assert [len(set(of_model)) for of_model in (losses[:3], losses[3:])] == [1, 1]
    assert len(set(norms)) == 6
