"""Waits for the Hugging Face hub: calls again after errors that pass, and gives up in words."""

import socket
from collections.abc import Callable, Iterator
from typing import TypeVar

from coupled_adam_bench.machine.progress import say
from embedding_geometry.transport import bounded, check_address, check_cache

Result = TypeVar("Result")
BY_FETCH = " download it first (target `fetch`, with paths.hub_mirror),"
"""The advice that only `fetch` itself does not give."""


class PlaceError(ValueError):
    """Says why a place cannot serve a dataset, and what to set for a corpus; ``problem`` is only
    the first."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}; {advice}")
        self.problem = problem


class HubAwayError(ValueError):
    """Says that the hub could not be reached for as long as a job waits."""


def patiently(what: str, minutes: float, call: Callable[[], Result], most_bytes: int = 0) -> Result:
    """Return what ``call`` returns, and call it again after each error that passes; say so on
    stderr.

    These are broken and stalled connections, HTTP 408, 425, 429 and 5xx. Raises ``HubAwayError``
    after ``minutes`` of them, and at once if the name of the server is not known. Errors that do
    not pass go through, such as that of a file of more than ``most_bytes``, but for those behind
    which is a cache that cannot be written (``CacheError``).
    """
    from huggingface_hub import constants
    from tenacity import (
        RetryCallState,
        Retrying,
        retry_if_exception,
        stop_after_delay,
        wait_exponential,
    )

    def say_so(state: RetryCallState) -> None:
        assert state.outcome is not None
        say(
            f"{what}: {_in_short(state.outcome.exception())}; trying again in"
            f" {state.upcoming_sleep:.0f} s"
        )

    def bounded_call() -> Result:
        with bounded(minutes, most_bytes):
            return call()

    check_address(constants.ENDPOINT)
    retrying = Retrying(
        retry=retry_if_exception(_passes),
        wait=wait_exponential(max=300),
        stop=stop_after_delay(60 * minutes),
        before_sleep=say_so,
        reraise=True,
    )
    try:
        return retrying(bounded_call)
    except Exception as error:
        check_cache()
        # The library wraps what the socket said, so its causes are looked through.
        if any(isinstance(cause, socket.gaierror) for cause in causes_of(error)):
            given_up = "the name of the server is not known here"
        elif _passes(error):
            given_up = f"gave up after {minutes:g} minutes (execution.hub_minutes)"
        else:
            raise
        raise HubAwayError(
            f"{what}: {_in_short(error)}; {given_up}. What is finished is kept: run again, connect"
            " this machine, or download all on one that is connected (docs/data.md)"
        ) from error


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status that an error of the hub's library carries, or None."""
    statuses = (
        getattr(getattr(cause, "response", None), "status_code", None) for cause in causes_of(error)
    )
    return next((status for status in statuses if status is not None), None)


def _in_short(error: BaseException | None) -> str:
    status = status_of(error)
    return f"{type(error).__name__}: {error}" if status is None else f"HTTP {status}"


def _passes(error: BaseException) -> bool:
    """Tell whether it helps to wait."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    causes = list(causes_of(error))
    if any(
        isinstance(cause, PlaceError | OfflineModeIsEnabled | socket.gaierror) for cause in causes
    ):
        return False
    if (status := status_of(error)) is not None:
        return status in (408, 425, 429) or status >= 500
    # The library uses httpx or requests, depending on its version, and raises RuntimeError where
    # hf_xet has failed.
    names = {kind.__name__ for cause in causes for kind in type(cause).__mro__}
    return bool(
        names
        & {"ConnectionError", "TimeoutError", "TransportError", "RequestException", "RuntimeError"}
    )
