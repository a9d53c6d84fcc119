import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coupled_adam_bench.store import locks
from coupled_adam_bench.store.locks import FolderLock, folder_lock

HOLD = """
import sys, time
from pathlib import Path
from coupled_adam_bench.store.locks import folder_lock
with folder_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start a process that holds the lock of ``tmp_path/folder`` until it is given a line or
    killed."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD, str(tmp_path / "folder")]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_one_process_at_a_time_and_the_other_says_for_whom_it_waits(
    hold, tmp_path, capsys, monkeypatch
):
    holder, folder = hold(), tmp_path / "folder"
    monkeypatch.setattr(locks, "LINE_SECONDS", 0.5)
    lock = FolderLock(folder)
    assert not lock.acquire(1.5)
    lines = capsys.readouterr().err.splitlines()
    expected = (
        f"{folder}: waits for the process that works in this folder (pid {holder.pid} on"
        f" {os.uname().nodename})"
    )
    assert lines == [expected] * len(lines)
    assert 2 <= len(lines) <= 4  # at once, and then at intervals
    holder.communicate("go\n")
    assert lock.acquire(5)
    lock.release()


@pytest.mark.fault(
    "several users",
    "the process that held a folder's lock was killed and its lock file stays",
    "the kernel has dropped the lock: the next process begins at once",
)
def test_a_lock_file_that_a_killed_process_left_means_nothing(hold, tmp_path):
    holder, folder = hold(), tmp_path / "folder"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (folder / ".lock").read_text().startswith(f"pid {holder.pid} ")
    begun = time.monotonic()
    with folder_lock(folder):
        assert time.monotonic() - begun < 1


def test_a_folder_that_is_made_anew_while_its_lock_is_held_has_a_lock_of_its_own(hold, tmp_path):
    hold()
    folder = tmp_path / "folder"
    waiting = FolderLock(folder)
    assert not waiting.acquire(0)
    shutil.rmtree(folder)
    folder.mkdir()
    assert waiting.acquire(5)
    waiting.release()


def test_a_file_system_that_cannot_lock_is_named(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)  # as Lustre without the mount option flock
    with pytest.raises(
        OSError, match=r"\.lock: cannot be locked \(Function not implemented\); put the results on"
    ):
        FolderLock(tmp_path).acquire(0)
