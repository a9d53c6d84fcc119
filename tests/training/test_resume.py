"""Stopped, killed or damaged at any step, a run ends with the bits of one that was left alone."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from nano import losses, plan_of, same_bits, train, weights

from coupled_adam_bench.store.runs import run_of
from coupled_adam_bench.training.jobs import train_cells
from coupled_adam_bench.training.loop import train as train_cell
from coupled_adam_bench.training.processes import GO_ON, Group

RULES = [
    "adamw",
    "coupled_adam",
    {"name": "sgd", "lr_factor": 20},
    {"name": "adamw", "amsgrad": True, "mu_centering": True},
]


@pytest.mark.usefixtures("nano")
def test_a_run_that_stops_after_every_step_has_the_same_bits() -> None:
    plan = plan_of(RULES, steps=24)
    cells = list(plan.cells.values())
    assert train_cells(cells, plan.study.execution) == 0
    undisturbed = [(losses(cell), weights(cell)) for cell in cells]
    Path("results/runs").rename("undisturbed")
    # A request that is there before the first step ends the run after it.
    group, stop = Group(torch.device("cpu")), [int(signal.SIGTERM)]
    for cell, (its_losses, its_weights) in zip(cells, undisturbed, strict=True):
        ends = [train_cell(cell, plan.study.execution, group, stop) for _ in range(24)]
        assert ends == [GO_ON] * 23 + [0]
        assert losses(cell) == its_losses
        assert same_bits(weights(cell), its_weights)


JOB = """
import os, signal, sys
from pathlib import Path
from coupled_adam_bench.study.plan import read_plan
from coupled_adam_bench.training import checkpoint
from coupled_adam_bench.training.jobs import train_cells
from coupled_adam_bench.training.trainer import Trainer

number, step, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
owner, name = {"step": (Trainer, "train_step"), "digest": (checkpoint, "sha256_file")}[place]
original = getattr(owner, name)
calls = 0

def hit(*arguments):
    global calls
    calls += 1
    if calls == step:
        os.kill(os.getpid(), number)
    return original(*arguments)

setattr(owner, name, hit)
plan = read_plan(Path("plan.json"))
sys.exit(train_cells(plan.cells.values(), plan.study.execution))
"""


def test_a_run_that_is_killed_has_the_same_bits(nano: Path) -> None:
    (cell,) = train(["coupled_adam"])
    undisturbed = losses(cell), weights(cell)
    run = run_of(cell.id)
    run.folder.rename(nano / "undisturbed")
    plan_of(["coupled_adam"]).write(nano / "plan.json")
    # In a step, and where a checkpoint is written but not in its place.
    for number, step, place in (
        (signal.SIGKILL, 17, "step"),
        (signal.SIGKILL, 3, "digest"),
        (signal.SIGTERM, 4, "step"),
    ):
        command = [sys.executable, "-c", JOB, str(int(number)), str(step), place]
        status = subprocess.run(command, check=False).returncode
        assert status == (GO_ON if number == signal.SIGTERM else -number)
        assert not run.record.exists()
    train(["coupled_adam"])
    assert (losses(cell), len(weights(cell))) == (undisturbed[0], len(undisturbed[1]))
    assert same_bits(weights(cell), undisturbed[1])


@pytest.mark.parametrize("damage", ["flipped bit", "half a file", "unfinished"])
@pytest.mark.usefixtures("nano")
def test_a_damaged_checkpoint_is_passed_over(damage: str) -> None:
    (cell,) = train(["adamw"])
    run, before = run_of(cell.id), weights(cell)
    run.record.unlink()
    last = sorted(run.checkpoints.glob("*.pt"))[-1]
    content = bytearray(last.read_bytes())
    if damage == "flipped bit":
        content[len(content) // 2] ^= 4
    if damage == "half a file":
        del content[len(content) // 2 :]
    if damage == "unfinished":
        last = last.rename(last.with_name("unfinished.tmp"))
    last.write_bytes(content)
    train(["adamw"])
    assert same_bits(weights(cell), before)
    assert [row["step"] for row in run.rows()] == list(range(5, 65, 5))


@pytest.mark.usefixtures("nano")
def test_the_last_two_checkpoints_stay_whatever_lay_there() -> None:
    folder = run_of(next(iter(plan_of(["adamw"]).cells))).checkpoints
    folder.mkdir(parents=True)
    for step in (400, 500):
        (folder / f"step-{step:08d}-of-other-data.pt").touch()
    train(["adamw"])
    assert sorted(int(path.name[5:13]) for path in folder.iterdir()) == [50, 60]
