"""Requests to stop, which end training at its next step; and cells of a job that share its GPU, each a process."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from coupled_adam_bench.machine.progress import say

_POLL_SECONDS = 0.2
RESUME_ME = 75  # EX_TEMPFAIL of sysexits.h: stopped on request with a checkpoint; another start resumes

_collecting: list[list[int]] = []
"""The signals that :func:`stop_requests` has received, while it is entered."""


@contextlib.contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Collect SIGTERM and SIGHUP instead of dying; a cluster sends SIGTERM as a warning before the time limit.

    Entered again, by a cell within its job, this yields the same list, so that a request reaches both at any moment.
    """
    if _collecting:
        yield _collecting[0]
        return
    received: list[int] = []
    _collecting.append(received)

    def remember(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    previous = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup has it ignored
            previous[number] = signal.signal(number, remember)
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _collecting.clear()


def run_at_once(commands: Sequence[Sequence[str]]) -> int:
    """Run commands of this program at the same time, and return the worst of their exit statuses.

    A request to stop is handed on, and all are waited for. A command that was killed counts as 128 and the signal, as
    in a shell.
    """
    with stop_requests() as stop:
        processes = [subprocess.Popen([sys.executable, "-m", "coupled_adam_bench", *command]) for command in commands]
        asked: set[int] = set()
        try:
            while running := [process for process in processes if process.poll() is None]:
                for process in running:
                    if stop and process.pid not in asked:
                        asked.add(process.pid)
                        process.terminate()
                time.sleep(_POLL_SECONDS)
        finally:  # Ctrl-C reaches them, too
            for process in processes:
                process.wait()
    statuses = [_status(process.returncode, bool(stop)) for process in processes]
    if stop and RESUME_ME in statuses:
        return RESUME_ME
    for process, status in zip(processes, statuses, strict=True):
        if status > 128:
            say(f"error: process {process.pid}, one of {len(processes)} at once, was ended by signal {status - 128}")
    return max(statuses)


def _status(code: int, stopped: bool) -> int:
    """Return the exit status of a process; one that a request met before it could collect it has not begun."""
    if stopped and -code in (signal.SIGTERM, signal.SIGHUP):
        return RESUME_ME
    return code if code >= 0 else 128 - code
