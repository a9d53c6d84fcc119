"""The patience to wait for the Hugging Face hub: which errors pass, and how long a job waits for that."""

import email.utils
import errno
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import TypeVar
from urllib.error import HTTPError

from coupled_adam_bench.data.transport import guard_hub
from coupled_adam_bench.machine.progress import say

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors that mean a full disk, an exceeded quota and a limit on the size of files."""
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 300.0

Result = TypeVar("Result")


class PlaceError(ValueError):
    """Says why a place cannot serve a dataset, and what to set for a corpus; ``problem`` is the first alone."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}; {advice}")
        self.problem = problem


class HubAwayError(ValueError):
    """Says that the hub could not be reached for as long as a job waits."""


class Patience:
    """Waits out what passes: broken connections, HTTP 408, 425, 429 and 5xx; at most ``minutes`` without progress."""

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes

    def wait_out(self, what: str, call: Callable[[], Result], n_done: Callable[[], int] = lambda: 0) -> Result:
        """Return what ``call`` returns, and call it again after each failure that passes; say so on stderr.

        ``n_done`` counts what is kept between calls, and its growth is progress. Raises ``HubAwayError`` when patience
        ends; errors that do not pass go through.
        """
        guard_hub()
        start, done, wait = None, n_done(), FIRST_WAIT_SECONDS
        while True:
            try:
                return call()
            except Exception as error:
                found = passing_problem(error)
                if found is None:
                    raise
                problem, asked = found
                now = time.monotonic()
                if n_done() > done:
                    start, done, wait = None, n_done(), FIRST_WAIT_SECONDS
                start = now if start is None else start
                left = self.minutes * 60 - (now - start)
                if left <= 0:
                    raise HubAwayError(
                        f"{what}: {problem}; gave up after {self.minutes:g} minutes without progress "
                        "(execution.hub_minutes). What is finished is kept: run again, connect this machine, or "
                        "download all on one that is connected (target `fetch`)"
                    ) from error
                seconds = min(max(wait, asked), left)
                say(f"{what}: {problem}; trying again in {seconds:.0f} s")
                time.sleep(seconds)
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error of the hub's libraries carries, or None."""
    for cause in causes_of(error):
        status = getattr(getattr(cause, "response", None), "status_code", None)
        status = cause.code if isinstance(cause, HTTPError) else status
        if isinstance(status, int):
            return status
    return None


def passing_problem(error: Exception) -> tuple[str, float] | None:
    """Return what the matter is, and the seconds that the hub asks to wait, for an error that passes; else None."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    causes = list(causes_of(error))
    if isinstance(error, PlaceError):
        return None
    if any(isinstance(cause, OfflineModeIsEnabled) for cause in causes):
        return None
    if any(isinstance(cause, OSError) and cause.errno in DISK_FULL for cause in causes):
        return None
    status = status_of(error)
    if status is not None:
        return (f"HTTP {status}", _retry_after(causes)) if status in (408, 425, 429) or status >= 500 else None
    for cause in causes:
        # The libraries are httpx in some versions, and requests in others.
        kinds = {kind.__name__ for kind in type(cause).__mro__}
        broken = isinstance(cause, ConnectionError | TimeoutError) or kinds & {
            "TransportError",
            "RequestException",
            "URLError",
        }
        if broken or "Consistency check failed" in str(cause):
            return f"connection broken or refused ({type(cause).__name__}: {cause})", 0.0
    return None


def _retry_after(causes: list[BaseException]) -> float:
    """Return the seconds of the header Retry-After, or 0."""
    for cause in causes:
        answer = cause if isinstance(cause, HTTPError) else getattr(cause, "response", None)
        text = getattr(answer, "headers", {}).get("Retry-After")
        if text is not None:
            with suppress(ValueError):
                return max(0.0, float(text))
            with suppress(ValueError):
                return max(0.0, (email.utils.parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    return 0.0
