"""Cells of a job that are trained at the same time, each by a process of its own."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forks import python, python_of_jobs

from coupled_adam_bench.cli import main
from coupled_adam_bench.store.files import read_sealed
from coupled_adam_bench.study.config import parse_study
from coupled_adam_bench.training.checkpoint import checkpoints
from coupled_adam_bench.training.memory import job_mem_mb, train_mem_mb
from coupled_adam_bench.training.stop_requests import RESUME_ME


@pytest.fixture
def workspace(make_workspace, tiny_study) -> Callable[..., Any]:
    """Make a workspace with two cells, or more, in jobs that train two of them at once."""

    def make(steps: int = 20, seeds: int = 1, name: str = "workspace", **execution: Any) -> Any:
        settings = tiny_study()
        settings["grid"][0] |= {"table": None, "tokens": [{"steps": steps}], "seeds": list(range(1, seeds + 1))}
        settings["execution"] |= {"train_cells_per_job": 8, "train_cells_at_once": 2, **execution}
        return make_workspace(settings, name)

    return make


def start(workspace: Any) -> Any:
    command = ["-m", "coupled_adam_bench", *workspace.command(*workspace.plan.cells), "--done", "done"]
    return python("training", command, workspace.folder, dict(os.environ), jobs="training")


def trainers(workspace: Any) -> dict[str, int]:
    """Wait until each process trains a cell, and return the processes by their cells."""
    deadline = time.monotonic() + 90
    while True:
        begun = {path.parent.name: path for path in workspace.folder.glob("results/runs/*/history.jsonl")}
        if len(begun) == 2 and all(path.stat().st_size for path in begun.values()):
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    locks = {cell: path.with_name(".lock").read_text() for cell, path in begun.items()}
    found = {cell: re.match(r"pid (\d+) on", text) for cell, text in locks.items()}
    return {cell: int(match[1]) for cell, match in found.items() if match}


def models(workspace: Any) -> dict[str, str]:
    records = {cell: workspace.run_dir(cell) / "run.json" for cell in workspace.plan.cells}
    return {cell: read_sealed(path)["model_sha256"] for cell, path in records.items()}


def test_cells_at_once_are_those_one_by_one(workspace, monkeypatch) -> None:
    together, alone = workspace(seeds=2), workspace(seeds=2, name="alone")
    monkeypatch.setattr(sys, "executable", python_of_jobs("training"))
    for place, options in ((together, []), (alone, ["--one-by-one"])):
        monkeypatch.chdir(place.folder)
        assert main([*place.command(*place.plan.cells), *options, "--done", "done"]) == 0
        assert Path("done").exists()
    assert len(models(together)) == 4
    assert models(together) == models(alone)


@pytest.mark.fault(
    "cluster",
    "a job that trains several cells at once is asked to stop",
    "each process writes a checkpoint; the job ends with status 75, to be started again",
)
def test_a_request_to_stop_reaches_all(workspace) -> None:
    place = workspace(steps=100_000, checkpoint_every=100_000)
    process = start(place)
    found = trainers(place)
    assert len(set(found.values())) == 2 and process.pid not in found.values()
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == RESUME_ME
    assert all(checkpoints(place.run_dir(cell) / "checkpoints") for cell in found)
    assert not (place.folder / "done").exists()


@pytest.mark.fault(
    "cluster",
    "one of several processes that train at once is killed",
    "the others train their cells to the end; the job fails as a job that was killed",
)
def test_a_killed_process_costs_the_others_nothing(workspace) -> None:
    place = workspace(steps=800, checkpoint_every=100_000)
    process = start(place)
    (lost, pid), (kept, _) = trainers(place).items()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(pid, signal.SIGKILL)
    _, said = process.communicate(timeout=90)
    assert process.returncode == 128 + signal.SIGKILL
    named = re.search(r"process (\d+), one of 2 at once, was ended by signal 9", said)
    assert named and named[1] in children
    assert (place.run_dir(kept) / "run.json").exists() and not (place.run_dir(lost) / "run.json").exists()


def test_a_job_asks_for_what_its_cells_need_together(tiny_study, workspace) -> None:
    place = workspace()
    cells = list(place.plan.cells.values())
    execution = cells[0].study.execution
    assert execution.training_job_threads == 2 * execution.training_threads
    assert job_mem_mb(cells, execution, 2) == sum(train_mem_mb(cell, execution) for cell in cells)
    assert job_mem_mb(cells, execution, 1) == max(train_mem_mb(cell, execution) for cell in cells)
    limited = execution.model_copy(update={"train_mem_mb": 700})
    assert job_mem_mb(cells, limited, 2) == 700


@pytest.mark.parametrize(
    ("execution", "message"),
    [
        ({"gpus": 2}, "train_cells_at_once: 3, but gpus or train_processes: 2"),
        ({"micro_batch_sequences": "auto"}, "train_cells_at_once: 3, but micro_batch_sequences: auto"),
    ],
)
def test_what_does_not_go_together_is_refused(execution, message, tiny_study) -> None:
    settings = tiny_study()
    settings["execution"] |= {"train_cells_at_once": 3, **execution}
    with pytest.raises(ValueError, match=message):
        parse_study(settings)
