"""Waiting for what other processes do, within a time."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float = 60, what: str = "") -> None:
    """Return when the condition holds, which must be within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
