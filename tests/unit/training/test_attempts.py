"""Who waits for whom, and what is noted of an attempt that was killed: whole processes."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coupled_adam_bench.store.files import read_sealed
from coupled_adam_bench.store.locks import folder_lock
from coupled_adam_bench.store.paths import RunFiles
from coupled_adam_bench.store.runs import killed_attempts
from coupled_adam_bench.training.checkpoint import checkpoints
from coupled_adam_bench.training.distributed import STALLED
from coupled_adam_bench.training.stop_requests import RESUME_ME

WAITS = "waits for the process that works in this folder (pid "
KILLED = "the attempt before was killed, most likely for lack of memory (execution.train_mem_mb)"


@pytest.fixture
def prepare(make_workspace, tiny_study) -> Callable[..., Any]:
    """Make a workspace with one cell."""

    def make(steps: int = 30, processes: int = 1, **execution: Any) -> Any:
        settings = tiny_study()
        settings["grid"][0] |= {"table": None, "optimizers": ["adamw"], "tokens": [{"steps": steps}], "seeds": [1]}
        settings["execution"] |= {"train_processes": processes, **execution}
        return make_workspace(settings)

    return make


def log_of(workspace: Any, rank: int = 0) -> str:
    path: Path = workspace.folder / f"rank-{rank}.log"
    return path.read_text() if path.exists() else ""


def wait_until(true: Callable[[], Any], is_running: Callable[[], bool], seconds: float = 60) -> None:
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
def test_two_jobs_train_one_cell(processes: int, prepare, nursery) -> None:
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
@pytest.mark.parametrize(("processes", "asked"), [(1, 0), (2, 0), (2, 1)])
def test_a_request_to_stop_ends_the_wait(processes: int, asked: int, prepare, nursery) -> None:
    workspace = prepare(processes=processes)
    (cell,) = workspace.plan.cells
    with folder_lock(workspace.run_dir(cell)):
        pids = nursery.start(workspace.command(cell), workspace.folder, processes)
        wait_until(lambda: WAITS in log_of(workspace), lambda: nursery.is_running(pids[0]))
        os.kill(pids[asked], signal.SIGTERM)
        assert [nursery.wait(pid) for pid in pids] == [RESUME_ME] * processes
    assert not RunFiles(workspace.run_dir(cell)).attempt.exists()


def test_an_error_of_the_first_process_rises_in_all(prepare, nursery) -> None:
    workspace = prepare(processes=2)
    (cell,) = workspace.plan.cells
    workspace.run_dir(cell).mkdir(parents=True)
    (workspace.run_dir(cell) / ".lock").symlink_to("/proc/version")  # a file that nobody may write
    pids = nursery.start(workspace.command(cell), workspace.folder, 2)
    assert [nursery.wait(pid) for pid in pids] == [2, 2]
    for rank in (0, 1):
        assert "Invalid argument" in log_of(workspace, rank)
        assert "Traceback" not in log_of(workspace, rank)


@pytest.mark.fault(
    "cluster",
    "Training is killed without a word: out of memory, or a node that goes down.",
    "The log and the next attempt name execution.train_mem_mb; each attempt that was killed raises the memory "
    "of the next one by half.",
)
@pytest.mark.parametrize(("processes", "victims"), [(1, [0]), (2, [0, 1]), (2, [0]), (2, [1])])
def test_attempts_that_were_killed_are_counted_and_said(processes: int, victims: list[int], prepare, nursery) -> None:
    workspace = prepare(steps=100_000, processes=processes, checkpoint_every=5)
    (cell,) = workspace.plan.cells
    run_dir = workspace.run_dir(cell)
    for attempt in (1, 2):
        before = checkpoints(run_dir / "checkpoints")[:1]
        pids = nursery.start(workspace.command(cell), workspace.folder, processes)
        moved = lambda before=before: checkpoints(run_dir / "checkpoints")[:1] != before  # noqa: E731
        wait_until(moved, lambda pids=pids: nursery.is_running(pids[0]))
        assert killed_attempts(run_dir) == attempt - 1  # this one lives
        assert log_of(workspace).count(KILLED) == attempt - 1
        for rank in victims:
            os.kill(pids[rank], signal.SIGKILL)
        statuses = [nursery.wait(pid) for pid in pids]
        assert [statuses[rank] for rank in victims] == [-signal.SIGKILL] * len(victims)
        assert killed_attempts(run_dir) == attempt
    pids = nursery.start(workspace.command(cell), workspace.folder, processes)
    wait_until(lambda: log_of(workspace).count(KILLED) == 2, lambda: nursery.is_running(pids[0]))
    time.sleep(0.5)
    os.kill(pids[0], signal.SIGTERM)
    assert [nursery.wait(pid) for pid in pids] == [RESUME_ME] * processes
    assert killed_attempts(run_dir) == 2  # the next one needs the memory as well


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("delay", [0.0, 0.3])
def test_a_request_to_stop_is_no_kill(number: signal.Signals, delay: float, prepare, nursery) -> None:
    """SIGHUP comes when a terminal is closed."""
    workspace = prepare(steps=100_000)
    (cell,) = workspace.plan.cells
    run_dir = workspace.run_dir(cell)
    (pid,) = nursery.start(workspace.command(cell), workspace.folder)
    wait_until(lambda: RunFiles(run_dir).attempt.exists(), lambda: nursery.is_running(pid))
    time.sleep(delay)
    os.kill(pid, number)
    assert nursery.wait(pid) == RESUME_ME
    assert not RunFiles(run_dir).attempt.exists()
    assert checkpoints(run_dir / "checkpoints")  # each attempt gets on, however early it is stopped


def test_neither_an_error_nor_a_stall_is_a_kill(prepare, nursery, tiny_data: Path) -> None:
    workspace = prepare(steps=100_000, processes=2, stall_seconds=1.0)
    (cell,) = workspace.plan.cells
    run_dir = workspace.run_dir(cell)
    pids = nursery.start(workspace.command(cell), workspace.folder, 2)
    history = run_dir / "history.jsonl"
    wait_until(lambda: history.exists() and history.stat().st_size, lambda: nursery.is_running(pids[0]))
    os.kill(pids[1], signal.SIGSTOP)
    assert nursery.wait(pids[0]) == STALLED
    assert killed_attempts(run_dir) == 0
    nursery.kill(pids[1:])
    data = workspace.folder / "results/data" / tiny_data.name
    data.unlink()
    shutil.copytree(tiny_data, data)
    (data / "train.bin").write_bytes(b"")
    (pid,) = nursery.start(workspace.command(cell), workspace.folder)
    assert nursery.wait(pid) == 2
    assert "train.bin: 0 bytes" in log_of(workspace)
    assert not RunFiles(run_dir).attempt.exists()


def test_a_finished_cell_forgets_its_kills(prepare, nursery) -> None:
    workspace = prepare(steps=400, checkpoint_every=5)
    (cell,) = workspace.plan.cells
    run_dir = workspace.run_dir(cell)
    pids = nursery.start(workspace.command(cell), workspace.folder)
    wait_until(lambda: checkpoints(run_dir / "checkpoints"), lambda: nursery.is_running(pids[0]))
    nursery.kill(pids)
    assert killed_attempts(run_dir) == 1
    (pid,) = nursery.start(workspace.command(cell), workspace.folder)
    assert nursery.wait(pid) == 0
    assert KILLED in log_of(workspace)
    assert killed_attempts(run_dir) == 0
    assert read_sealed(run_dir / "run.json")["status"] == "completed"
