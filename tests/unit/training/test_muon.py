"""Cells whose core is trained by Muon: on one process and on several, and stopped and gone on
with."""

import json

import numpy as np
import pytest
import torch

from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.training.distributed import WorkerGroup

ALONE = WorkerGroup(torch.device("cpu"))


def settings_of(tiny_study, steps=20, optimizers=("coupled_adam",), **execution):
    settings = tiny_study()
    settings["training"]["core_optimizer"] = "muon"
    settings["grid"][0] |= {
        "table": None,
        "optimizers": [*optimizers],
        "tokens": [{"steps": steps}],
        "seeds": [1],
    }
    settings["execution"] |= execution
    return settings


def losses_of(workspace):
    (cell_id,) = workspace.plan.cells
    lines = (workspace.run_dir(cell_id) / "history.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.fixture(scope="module")
def alone(make_workspace_in, shared_nursery, tiny_study, tmp_path_factory):
    """The losses of the cell trained by one process."""
    workspace = make_workspace_in(tmp_path_factory.mktemp("alone"), settings_of(tiny_study))
    return losses_of(shared_nursery.train(workspace))


@pytest.mark.parametrize(("parallel", "micro"), [("ddp", None), ("fsdp", None), ("fsdp", 1)])
def test_two_processes_give_the_same_curve(
    parallel, micro, alone, make_workspace, nursery, tiny_study
):
    """Matrices in shards are made orthogonal as wholes."""
    execution = {"parallel": parallel, "train_processes": 2, "micro_batch_sequences": micro}
    workspace = make_workspace(settings_of(tiny_study, **execution))
    nursery.train(workspace)
    # Ten times the tolerance of other optimizers: the iteration of Newton and Schulz rounds to
    # bfloat16.
    np.testing.assert_allclose(losses_of(workspace), alone, rtol=2e-4)
    assert alone[-1] < alone[0] - 0.2


def test_a_stopped_cell_goes_on_with_the_same_bits(tiny_study, goes_on):
    (cell,) = make_plan(parse_study(settings_of(tiny_study))).cells.values()
    goes_on(cell, 13)
