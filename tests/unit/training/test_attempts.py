"""Who waits for whom, and what a request to stop does: whole processes."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coupled_adam_bench.store.locks import folder_lock
from coupled_adam_bench.training.checkpoint import checkpoints
from coupled_adam_bench.training.stop_requests import RESUME_ME

WAITS = "waits for the process that works in this folder (pid "


@pytest.fixture
def prepare(make_workspace, tiny_study) -> Callable[..., Any]:
    """Make a workspace with one cell."""

    def make(steps: int = 30, processes: int = 1, **execution: Any) -> Any:
        settings = tiny_study()
        settings["grid"][0] |= {
            "table": None,
            "optimizers": ["adamw"],
            "tokens": [{"steps": steps}],
            "seeds": [1],
        }
        settings["execution"] |= {"train_processes": processes, **execution}
        return make_workspace(settings)

    return make


def log_of(workspace: Any, rank: int = 0) -> str:
    path: Path = workspace.folder / f"rank-{rank}.log"
    return path.read_text() if path.exists() else ""


def wait_until(
    true: Callable[[], Any], is_running: Callable[[], bool], seconds: float = 60
) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert is_running()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.fault(
    "several users",
    "two jobs train the same cell or trunk at the same time",
    "one waits for the other, says so, and then keeps what it finds finished",
)
@pytest.mark.parametrize("processes", [1, 2])
def test_two_jobs_train_one_cell(processes, prepare, nursery):
    workspace = prepare(processes=processes)
    (cell,) = workspace.plan.cells
    run_dir = workspace.run_dir(cell)
    with folder_lock(run_dir):
        pids = nursery.start(workspace.command(cell), workspace.folder, processes)
        wait_until(lambda: WAITS in log_of(workspace), lambda: nursery.is_running(pids[0]))
        time.sleep(2.5)  # longer than one look at the lock
        assert not (run_dir / "history.jsonl").exists()
    assert [nursery.wait(pid) for pid in pids] == [0] * processes
    assert log_of(workspace).count(f"(pid {os.getpid()} on ") == 1
    record = (run_dir / "run.json").read_bytes()
    with folder_lock(run_dir):
        # Not alone, or the finished cell would be kept without a look at the lock.
        pids = nursery.start(workspace.command(cell), workspace.folder, 2)
        wait_until(lambda: log_of(workspace).count(WAITS) == 2, lambda: nursery.is_running(pids[0]))
    assert [nursery.wait(pid) for pid in pids] == [0, 0]
    assert f"{cell}: kept, trained before" in log_of(workspace)
    assert (run_dir / "run.json").read_bytes() == record


@pytest.mark.fault(
    "cluster",
    "a job is asked to stop while it waits for the job that trains the same cell",
    "it stops at once with status 75, to be started again",
)
@pytest.mark.parametrize(("processes", "asked"), [(1, 0), (2, 1)])
def test_a_request_to_stop_ends_the_wait(processes, asked, prepare, nursery):
    workspace = prepare(processes=processes)
    (cell,) = workspace.plan.cells
    with folder_lock(workspace.run_dir(cell)):
        pids = nursery.start(workspace.command(cell), workspace.folder, processes)
        wait_until(lambda: WAITS in log_of(workspace), lambda: nursery.is_running(pids[0]))
        os.kill(pids[asked], signal.SIGTERM)
        assert [nursery.wait(pid) for pid in pids] == [RESUME_ME] * processes


@pytest.mark.parametrize(("number", "delay"), [(signal.SIGTERM, 0.0), (signal.SIGHUP, 0.3)])
def test_a_request_to_stop_ends_a_run_at_any_moment(number, delay, prepare, nursery):
    """SIGHUP comes when a terminal is closed."""
    workspace = prepare(steps=100_000)
    (cell,) = workspace.plan.cells
    run_dir = workspace.run_dir(cell)
    (pid,) = nursery.start(workspace.command(cell), workspace.folder)
    wait_until(lambda: (run_dir / "history.jsonl").exists(), lambda: nursery.is_running(pid))
    time.sleep(delay)
    os.kill(pid, number)
    assert nursery.wait(pid) == RESUME_ME
    assert checkpoints(run_dir / "checkpoints")  # each attempt gets on, however early it is stopped
