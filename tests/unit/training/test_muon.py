"""Cells whose core is trained by Muon: on one process and on several, and stopped and gone on with."""

import json

import numpy as np
import pytest
import torch
from planned import only

from coupled_adam_bench.config import parse_study
from coupled_adam_bench.plan import make_plan
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.loop import train
from coupled_adam_bench.training.trainer import Trainer

ALONE = WorkerGroup(torch.device("cpu"))


def settings_of(tiny_study, steps=40, optimizers=("coupled_adam",), **execution):
    settings = tiny_study()
    settings["training"]["core_optimizer"] = "muon"
    settings["grid"][0] |= {"table": None, "optimizers": [*optimizers], "tokens": [{"steps": steps}], "seeds": [1]}
    settings["execution"] |= execution
    return settings


def losses_of(workspace):
    (cell_id,) = workspace.plan.cells
    lines = (workspace.run_dir(cell_id) / "history.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def train_all(nursery, workspace, processes):
    pids = nursery.start(workspace.command(*workspace.plan.cells), workspace.folder, processes)
    assert [nursery.wait(pid) for pid in pids] == [0] * processes, (workspace.folder / "rank-0.log").read_text()


@pytest.fixture
def alone(make_workspace, nursery, tiny_study):
    workspace = make_workspace(settings_of(tiny_study), "alone")
    train_all(nursery, workspace, 1)
    return losses_of(workspace)


@pytest.mark.parametrize(("parallel", "micro"), [("ddp", None), ("fsdp", None), ("fsdp", 1)])
def test_two_processes_give_the_same_curve(parallel, micro, alone, make_workspace, nursery, tiny_study):
    """Matrices in shards are made orthogonal as wholes."""
    execution = {"parallel": parallel, "train_processes": 2, "micro_batch_sequences": micro}
    workspace = make_workspace(settings_of(tiny_study, **execution))
    train_all(nursery, workspace, 2)
    # Ten times the tolerance of other optimizers: the iteration of Newton and Schulz rounds to bfloat16.
    np.testing.assert_allclose(losses_of(workspace), alone, rtol=2e-4)
    assert alone[-1] < alone[0] - 0.2


def test_a_stopped_cell_goes_on_with_the_same_bits(tiny_study, tiny_data, tmp_path):
    plan = make_plan(parse_study(settings_of(tiny_study)))
    (cell,) = plan.cells.values()
    execution = only(plan).study.execution
    assert train(cell, execution, tiny_data, tmp_path / "undisturbed", ALONE) == 0
    trainer = Trainer(cell, execution, tiny_data, tmp_path / "stopped", ALONE)
    trainer.resume()
    for step in range(13):
        trainer.train_step(step)
        trainer.state.step += 1
    trainer.save()
    trainer.checkpoints.wait()
    assert train(cell, execution, tiny_data, tmp_path / "stopped", ALONE) == 0
    weights = [tmp_path / run / "model" / "model.safetensors" for run in ("undisturbed", "stopped")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_cell_in_shards_is_stopped_and_goes_on_alone(alone, make_workspace, nursery, tiny_study):
    half = make_workspace(settings_of(tiny_study, parallel="fsdp", train_processes=2, checkpoint_every=20), "half")
    train_all(nursery, half, 2)
    rest = make_workspace(settings_of(tiny_study), "rest")
    (cell_id,) = rest.plan.cells
    checkpoints = rest.run_dir(cell_id) / "checkpoints"
    checkpoints.mkdir(parents=True)
    (half.run_dir(cell_id) / "checkpoints/step-00000020").rename(checkpoints / "step-00000020")
    lines = (half.run_dir(cell_id) / "history.jsonl").read_text().splitlines(keepends=True)
    (rest.run_dir(cell_id) / "history.jsonl").write_text("".join(lines[:4]))
    train_all(nursery, rest, 1)
    np.testing.assert_allclose(losses_of(rest), alone, rtol=2e-4)


def test_muon_is_another_cell_than_adamw(tiny_study, tiny_data, tmp_path):
    with_muon, without = settings_of(tiny_study), settings_of(tiny_study)
    del without["training"]["core_optimizer"]
    ids = [next(iter(make_plan(parse_study(settings)).cells)) for settings in (with_muon, without)]
    assert ids[0].rpartition("_")[0] == ids[1].rpartition("_")[0]
    assert ids[0] != ids[1]
