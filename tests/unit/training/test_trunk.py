"""Trunks change what a cell costs and none of its numbers."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from planned import only

from coupled_adam_bench.cli import main
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import read_json, write_sealed
from coupled_adam_bench.store.runs import read_history
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.plan.cells import stable_prefix
from coupled_adam_bench.study.plan.schedule import learning_rate_factor
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.training.checkpoint import checkpoints, damage
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.jobs import train, train_cells
from coupled_adam_bench.training.stop_requests import RESUME_ME
from coupled_adam_bench.training.trainer import Trainer

ALONE = WorkerGroup(torch.device("cpu"))


class Results:
    """A results folder: the data of the tiny study, and what is trained below it."""

    def __init__(self, folder: Path, data_dir: Path) -> None:
        self.folder, self.data_dir = folder, data_dir
        (folder / "data").mkdir(parents=True)
        (folder / "data" / data_dir.name).symlink_to(data_dir)

    def trunk(self, plan: Plan) -> int:
        """Train the one trunk of a plan from branch to branch."""
        (trunk,) = plan.trunks.values()
        trunk_dir = self.folder / "trunks" / trunk.run.id
        for part in sorted(trunk.prefixes.values(), key=lambda part: part.steps):
            if status := train(
                part, only(plan).study.execution, self.data_dir, trunk_dir, ALONE, trunk=True
            ):
                return status
        return 0

    def cell(self, plan: Plan, steps: int, alone: bool = False) -> dict[str, Any]:
        """Train the cell of so many steps, without trunks if it is to be ``alone``, and return what
        came of it."""
        (cell,) = (cell for cell in plan.cells.values() if cell.steps == steps)
        run_dir = self.folder / "runs" / cell.id
        results = None if alone else self.folder
        assert train(cell, only(plan).study.execution, self.data_dir, run_dir, ALONE, results) == 0
        run = read_json(run_dir / "run.json")
        columns = ("step", "tokens", "loss", "lr", "grad_norm", "mean_norm", "mean_norm_ratio")
        rows = read_history(run_dir / "history.jsonl")
        history = [
            {key: str(row[key]) for key in columns} for row in rows
        ]  # NaN is not equal to itself
        return {
            "status": (run["status"], run["step"], run["reason"]),
            "weights": run["model_sha256"],
            "history": history,
            "spikes": run["train"]["loss_spikes"],
            "trunk_steps": run["trunk_steps"],
        }

    def steps_on_file(self, plan: Plan) -> set[int]:
        (trunk_id,) = plan.trunks
        return {
            int(path.name[5:])
            for path in checkpoints(self.folder / "trunks" / trunk_id / "checkpoints")
        }


@pytest.fixture
def results(tiny_data: Path, tmp_path: Path) -> Callable[..., Results]:
    return lambda name="results": Results(tmp_path / name, tiny_data)


def settings_of(
    tiny_study: Callable[..., dict[str, Any]], *steps: int, optimizer: str = "adamw", **changes: Any
) -> dict[str, Any]:
    settings = tiny_study(study="wsd")
    settings["training"] |= {"schedule": "wsd", **changes}
    tokens = [{"steps": count} for count in steps]
    settings["grid"] = [
        {"models": ["nano"], "tokens": tokens, "optimizers": [optimizer], "seeds": [1]}
    ]
    return settings


@pytest.fixture
def wsd(tiny_study: Callable[..., dict[str, Any]]) -> Callable[..., Plan]:
    def make(*steps: int, optimizer: str = "adamw", **changes: Any) -> Plan:
        return make_plan(
            parse_study(settings_of(tiny_study, *steps, optimizer=optimizer, **changes))
        )

    return make


def without_cost(outcome: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in outcome.items() if key != "trunk_steps"}


# The decay of 20, 40 and 60 steps takes 4, 8 and 12: its first lower learning rates are in steps
# 17, 33 and 49.


@pytest.mark.parametrize(
    ("optimizer", "data_order"), [("adamw", "shuffled"), ("coupled_adam", "per_rank")]
)
def test_cells_of_a_trunk_end_with_the_bits_of_cells_alone(optimizer, data_order, results, wsd):
    plan = wsd(20, 40, 60, optimizer=optimizer, data_order=data_order)
    shared, alone = results("shared"), results("alone")
    assert shared.trunk(plan) == 0
    for steps, branch in ((20, 17), (40, 33), (60, 49)):
        expected, outcome = alone.cell(plan, steps, alone=True), shared.cell(plan, steps)
        assert outcome["trunk_steps"] == branch
        assert expected["trunk_steps"] == 0
        assert without_cost(outcome) == without_cost(expected)
        assert [row["step"] for row in outcome["history"]] == [
            str(step) for step in range(5, steps + 1, 5)
        ]


def test_a_trunk_keeps_its_branches_and_the_newest(results, wsd):
    shared, plan = results(), wsd(20, 40, 60)
    shared.trunk(plan)
    assert shared.steps_on_file(plan) == {17, 33, 49} | {
        30,
        40,
    }  # every tenth is a checkpoint, the newest two stay
    (trunk,) = plan.trunks.values()
    folder = shared.folder / "trunks" / trunk.run.id
    assert all(damage(path) is None for path in checkpoints(folder / "checkpoints"))
    assert not (folder / "model").exists()
    assert read_json(folder / "cell.json")["steps"] == 49
    for step in trunk.branches:
        record = read_json(folder / f"branch-{step:08d}.json")
        assert (record["cell"], record["status"], record["step"]) == (
            trunk.run.id,
            "completed",
            step,
        )


def test_a_larger_d_goes_on_and_a_smaller_one_starts_from_the_branch_before(
    results, wsd, monkeypatch
):
    done: list[int] = []
    train_step = Trainer.train_step
    monkeypatch.setattr(
        Trainer, "train_step", lambda self, step: done.append(step) or train_step(self, step)
    )
    shared, alone = results("shared"), results("alone")
    first, later = wsd(20, 40), wsd(10, 20, 30, 40, 70)
    shared.trunk(first)
    assert done == list(range(33))
    done.clear()
    assert shared.trunk(later) == 0
    assert done == list(range(33, 57))
    assert {17, 33, 57} <= shared.steps_on_file(later)
    done.clear()
    outcomes = {steps: shared.cell(later, steps) for steps in (10, 30, 70)}
    assert done == [*range(10), *range(17, 30), *range(57, 70)]
    for steps, outcome in outcomes.items():
        assert without_cost(outcome) == without_cost(alone.cell(later, steps, alone=True))
    done.clear()
    assert shared.trunk(first) == 0  # which is shorter now than what is there
    assert done == []
    (trunk,) = later.trunks.values()
    assert read_json(shared.folder / "trunks" / trunk.run.id / "cell.json")["steps"] == 57
    assert shared.cell(later, 40)["history"][-1]["step"] == "40"
    assert read_history(shared.folder / "trunks" / trunk.run.id / "history.jsonl")[-1]["step"] == 55


def test_a_stopped_trunk_goes_on(results, wsd, monkeypatch):
    plan, shared, alone = wsd(20, 40), results("shared"), results("alone")
    train_step = Trainer.train_step

    def stopped(self: Trainer, step: int) -> Any:
        if step == 23:
            os.kill(os.getpid(), signal.SIGTERM)
        return train_step(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", stopped)
        assert shared.trunk(plan) == RESUME_ME
    assert shared.steps_on_file(plan) == {17, 20, 24}
    assert [path.name for path in shared.folder.glob("trunks/*/branch-*.json")] == [
        "branch-00000017.json"
    ]
    assert shared.trunk(plan) == 0
    assert without_cost(shared.cell(plan, 40)) == without_cost(alone.cell(plan, 40, alone=True))


def test_a_damaged_branch_costs_steps_only(results, wsd, capfd):
    plan, shared, alone = wsd(20, 40), results("shared"), results("alone")
    shared.trunk(plan)
    (trunk_id,) = plan.trunks
    state = shared.folder / "trunks" / trunk_id / "checkpoints" / "step-00000033" / "state.json"
    state.write_text(state.read_text() + " ")
    outcome = shared.cell(plan, 40)
    assert "step-00000033: damaged" in capfd.readouterr().err
    assert outcome["trunk_steps"] == 30
    assert without_cost(outcome) == without_cost(alone.cell(plan, 40, alone=True))


@pytest.mark.parametrize(("stop", "expected"), [(12, 33), (36, 0)])
def test_a_begun_cell_takes_its_trunk_only_if_that_is_further(
    stop, expected, results, wsd, monkeypatch
):
    plan, shared, alone = wsd(20, 40), results("shared"), results("alone")
    cell = next(cell for cell in plan.cells.values() if cell.steps == 40)
    train_step = Trainer.train_step

    def stopped(self: Trainer, step: int) -> Any:
        if step == stop:
            os.kill(os.getpid(), signal.SIGTERM)
        return train_step(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", stopped)
        run_dir = shared.folder / "runs" / cell.id
        assert train(cell, only(plan).study.execution, shared.data_dir, run_dir, ALONE) == RESUME_ME
    shared.trunk(plan)
    outcome = shared.cell(plan, 40)
    assert outcome["trunk_steps"] == expected
    assert without_cost(outcome) == without_cost(alone.cell(plan, 40, alone=True))


def test_a_trunk_that_diverges_lets_its_cells_tell(results, wsd):
    plan, shared, alone = wsd(20, 40, grad_clip=1e30), results("shared"), results("alone")
    wild = only(plan).study.models[0].model_copy(update={"learning_rate": 1e25})
    plan = make_plan(only(plan).study.model_copy(update={"models": (wild,)}))
    assert shared.trunk(plan) == 0
    records = [read_json(path) for path in shared.folder.glob("trunks/*/branch-*.json")]
    assert {(record["status"], record["step"]) for record in records} == {
        ("diverged", records[0]["step"])
    }
    assert "not finite in step" in records[0]["reason"]
    outcome = shared.cell(plan, 40)
    assert outcome["status"][0] == "diverged"
    assert outcome["status"][1] == records[0]["step"]
    assert without_cost(outcome) == without_cost(alone.cell(plan, 40, alone=True))


def test_the_command_line(results, wsd, monkeypatch, capsys):
    plan, shared = wsd(20, 40), results()
    (trunk,) = plan.trunks.values()
    monkeypatch.chdir(shared.folder.parent)
    write_sealed(Path("plan.json"), plan.to_json())
    branch = f"results/trunks/{trunk.run.id}/branch-00000033.json"
    command = ["train-trunk", "--plan", "plan.json", "--device", "cpu", "--branches"]
    assert main([*command, branch]) == 0
    assert read_json(Path(branch))["step"] == 33
    assert (
        train_cells(
            list(trunk.prefixes.values()),
            only(plan).study.execution,
            shared.folder,
            "cpu",
            trunk=True,
        )
        == 0
    )
    (cell,) = (cell for cell in plan.cells.values() if cell.steps == 40)
    assert main(["train", "--plan", "plan.json", "--device", "cpu", "--cells", cell.id]) == 0
    assert read_json(shared.folder / "runs" / cell.id / "run.json")["trunk_steps"] == 33
    capsys.readouterr()
    assert main([*command, cell.id]) == 2
    assert f"--branches: {cell.id} not among the branches of plan.json" in capsys.readouterr().err


def test_a_trunk_is_the_cell_at_the_peak(wsd):
    for warmup in (0, 5, 16):
        for cell in wsd(20, 40, 60, warmup_steps=warmup).cells.values():
            part = stable_prefix(cell)
            assert part is not None
            for step in range(part.steps):
                expected = learning_rate_factor(step, cell.steps, cell.training, 1.0)
                assert learning_rate_factor(step, part.steps, part.training, 1.0) == expected


def test_two_processes_share_a_trunk(make_workspace, nursery, tiny_study):
    settings = settings_of(tiny_study, 20, 40)
    settings["execution"] |= {"train_processes": 2}
    shared, alone = make_workspace(settings, "shared"), make_workspace(settings, "alone")
    (trunk_id,) = shared.plan.trunks
    cell_id = next(cell.id for cell in shared.plan.cells.values() if cell.steps == 40)
    branch = str(paths.branch_file(trunk_id, 33))
    trunk_command = ["train-trunk", "--plan", "plan.json", "--device", "cpu", "--branches", branch]
    for workspace, command in (
        (shared, trunk_command),
        (shared, shared.command(cell_id)),
        (alone, alone.command(cell_id)),
    ):
        nursery.train(workspace, *command)
    outcome, expected = (
        read_json(workspace.run_dir(cell_id) / "run.json") for workspace in (shared, alone)
    )
    assert (outcome["trunk_steps"], expected["trunk_steps"]) == (33, 0)
    assert outcome["model_sha256"] == expected["model_sha256"]
