"""How the hub and other servers are asked: by https alone, for answers that end, and with patience for what passes."""

import errno
import io
import ipaddress
import itertools
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from coupled_adam_bench.machine.progress import say

MOST_BYTES = 2**28
"""Largest answer whose size is not known before; it must fit into memory."""
MOST_REQUESTS = 100_000
"""Most requests to the hub's interface in one process: a list of files may have pages without end."""
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

    def __init__(
        self, minutes: float, advice: str = "or download all on one that is connected (target `fetch`)"
    ) -> None:
        self.minutes, self._advice = minutes, advice

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
                if (unknown := _unknown_name(error)) is not None:
                    raise HubAwayError(
                        f"{what}: the name of the server is not known here ({unknown}); connect this machine, "
                        f"{self._advice}"
                    ) from error
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
                        "(execution.hub_minutes). What is finished is kept: run again, connect this machine, "
                        f"{self._advice}"
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


def _unknown_name(error: BaseException) -> BaseException | None:
    """Return the error of a name that does not resolve, which no waiting mends, among the causes of an error."""
    for cause in causes_of(error):
        for found in (cause, getattr(cause, "reason", None)):
            if isinstance(found, socket.gaierror):
                return found
    return None


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
            with suppress(ValueError):  # a date, which the hub does not send
                return max(0.0, float(text))
    return 0.0


def check_address(url: str, asked: str) -> None:
    """Raise ``ValueError`` for a ``url`` of plain http, unless the user ``asked`` a server on this machine."""
    if urlsplit(url).scheme != "https" and not (_is_this_machine(url) and _is_this_machine(asked)):
        raise ValueError(
            f"{url.partition('?')[0]}: not https, so anybody on the way could send something else; use an address that "
            "begins with https:// (HF_ENDPOINT may also name a server on this machine)"
        )


def _is_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_url(url: str, most: int) -> bytes:
    """Return what a server sends, by https alone; ``ValueError`` if it has more than ``most`` bytes."""
    check_address(url, url)

    class Redirects(HTTPRedirectHandler):
        def redirect_request(self, *arguments: Any) -> Request | None:
            check_address(arguments[-1], url)
            return super().redirect_request(*arguments)

    with build_opener(Redirects).open(url, timeout=60) as answer:
        return read_at_most(answer, most, url)


def read_at_most(stream: Any, most: int, name: str) -> bytes:
    """Return what is left of a stream; ``ValueError`` with its ``name`` for more than ``most`` bytes."""
    contents = bytes(stream.read(most + 1))
    if len(contents) > most:
        raise ValueError(f"{name}: more than {most:,} bytes")
    return contents


class FileAtMost(io.BufferedWriter):
    """A file to whose end no more is written than ``most`` bytes in all; more raises ``ValueError``."""

    def __init__(self, path: Path, most: int) -> None:
        super().__init__(io.FileIO(path, "ab"))
        self._most = most

    def write(self, data: Any) -> int:
        """Write the data."""
        if self.tell() + len(data) > self._most:
            raise ValueError(f"the server sends more than the {self._most:,} bytes that it lists")
        return super().write(data)


@cache
def guard_hub() -> None:
    """Have the hub's library use https alone, and end answers and lists that have no end.

    Before its version 1.0 only the hub's own address is checked.
    """
    from huggingface_hub import constants

    check_address(constants.ENDPOINT, constants.ENDPOINT)
    try:
        from huggingface_hub import set_client_factory
        from huggingface_hub.utils._http import default_client_factory
    except ImportError:
        return
    numbers = itertools.count(1)

    def check_request(request: Any) -> None:
        check_address(str(request.url), constants.ENDPOINT)
        if request.url.path.startswith("/api/") and next(numbers) > MOST_REQUESTS:
            raise ValueError(f"{request.url.host}: more than {MOST_REQUESTS:,} requests, as for a list without end")

    def bound_answer(response: Any) -> None:
        if response.request.url.path.startswith("/api/") or "content-length" not in response.headers:
            response.stream = _bounded(response.stream, str(response.request.url))

    def client() -> Any:
        made = default_client_factory()
        hooks = made.event_hooks
        made.event_hooks = {
            "request": [*hooks["request"], check_request],
            "response": [*hooks["response"], bound_answer],
        }
        return made

    set_client_factory(client)


def _bounded(stream: Any, url: str) -> Any:
    """Return a stream of the hub's client that ends with ``ValueError`` after ``MOST_BYTES``."""

    def chunks(_: Any) -> Iterator[bytes]:
        n_bytes = 0
        for chunk in stream:
            n_bytes += len(chunk)
            if n_bytes > MOST_BYTES:
                raise ValueError(f"{url}: more than {MOST_BYTES:,} bytes in one answer")
            yield chunk

    base = next(kind for kind in type(stream).__mro__ if kind.__name__ == "SyncByteStream")
    return type("BoundedStream", (base,), {"__iter__": chunks, "close": lambda _: stream.close()})()
