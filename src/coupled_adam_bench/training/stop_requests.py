"""Requests to stop, which end training at its next step."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

RESUME_ME = (
    75  # EX_TEMPFAIL of sysexits.h: stopped on request with a checkpoint; another start resumes
)

_collecting: list[list[int]] = []
"""The signals that :func:`stop_requests` has received, while it is entered."""


@contextlib.contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Collect SIGTERM, SIGHUP and SIGINT instead of dying; a cluster sends SIGTERM as a warning
    before the time limit, and Ctrl-C is SIGINT.

    Entered again, by a cell within its job, this yields the same list, so that a request reaches
    both at any moment.
    """
    if _collecting:
        yield _collecting[0]
        return
    received: list[int] = []
    _collecting.append(received)

    def remember(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    previous = {}
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup has it ignored
            previous[number] = signal.signal(number, remember)
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _collecting.clear()
