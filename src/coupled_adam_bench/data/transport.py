"""What is accepted of a server: https alone, and answers that end."""

import io
import ipaddress
import itertools
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

MOST_BYTES = 2**28
"""Largest answer whose size is not known before; it must fit into memory."""
MOST_REQUESTS = 100_000
"""Most requests to the hub's interface in one process: a list of files may have pages without end."""


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
