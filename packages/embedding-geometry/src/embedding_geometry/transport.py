"""Bounds what the Hugging Face hub and other servers may send, in time and size, and asks them only
by https.

All requests go through the client of ``huggingface_hub``, which gives us one of its class with
these bounds.
"""

import contextvars
import ipaddress
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

ANSWER_BYTES = 2**25
"""Largest answer that is no file, such as a list of files, each page of which is an answer."""
SPARE_ANSWERS = 4
"""How often a file, or the largest answer, may be sent in one call: broken downloads begin
again."""
SLOWEST = 10_000
"""Bytes in a second; a server that sends less is waited for as long as one that sends nothing."""
STALL_SECONDS = 60.0
"""Least time that a call may stall in all, also where a study has no patience
(``execution.hub_minutes``)."""
HEADER_SECONDS = 60.0
"""How long a server may take until the first byte of what it was asked for."""
LONGEST_PAUSE_SECONDS = 300
"""Longest pause that a server may ask for by Retry-After; the library would sleep as long as it
says."""

Result = TypeVar("Result")


@dataclass
class _Bounds:
    """What a call may still take."""

    minutes: float
    most_bytes: int
    """Largest file of the call."""
    started: float = field(default_factory=time.monotonic)
    n_bytes: int = 0

    def take(self, n_bytes: int, url: str) -> None:
        """Count bytes that have arrived; ``TimeoutError`` or ``ValueError`` if the call has taken
        too long or much."""
        self.n_bytes += n_bytes
        seconds = max(60 * self.minutes, STALL_SECONDS)
        if time.monotonic() - self.started > seconds + self.n_bytes / SLOWEST:
            raise TimeoutError(
                f"{url} has sent less than {SLOWEST:,} bytes a second for {seconds:g} seconds"
            )
        largest = max(self.most_bytes, ANSWER_BYTES)
        if self.n_bytes > SPARE_ANSWERS * largest:
            raise ValueError(
                f"{url} and those before it sent more than {SPARE_ANSWERS * largest:,} bytes"
            )


_bounds = _Bounds(30.0, 0)


@contextmanager
def bounded(minutes: float, most_bytes: int = 0) -> Iterator[None]:
    """Bound all answers meanwhile: in all they may stall for ``minutes``, and a file has at most
    ``most_bytes``.

    ``TimeoutError`` for what takes longer, ``ValueError`` for what is larger. Other answers have at
    most ``ANSWER_BYTES``.
    """
    # threads of the library send requests too, so that no variable of a context reaches them
    global _bounds
    _bound_hub()
    before, _bounds = _bounds, _Bounds(minutes, most_bytes)
    try:
        yield
    finally:
        _bounds = before


class CacheError(ValueError):
    """Says that the folder in which the hub's libraries keep files cannot be written."""


def check_cache() -> None:
    """Raise ``CacheError`` if the hub's libraries cannot keep files where they are told to.

    They meet such a folder with errors that say something else. It is asked only after an error,
    since a cache that has all that is needed may be one that nobody may write.
    """
    from huggingface_hub import constants

    folders = {"HF_HOME": constants.HF_HOME, "HF_HUB_CACHE": constants.HF_HUB_CACHE}
    if "HF_DATASETS_CACHE" in os.environ:
        folders["HF_DATASETS_CACHE"] = os.environ["HF_DATASETS_CACHE"]
    for name, folder in folders.items():
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise CacheError(
                f"{name}: {folder} cannot be written ({error.strerror}), and the libraries of the"
                f" Hugging Face hub keep files there; set {name} to a folder that can be written"
            ) from None


def check_address(url: str, asked: str | None = None) -> None:
    """Raise ``ValueError`` for an address that is not of https and not of this machine.

    An address to which a server leads may be of this machine only if the one that was ``asked`` is.
    """
    if urlsplit(url).scheme != "https" and not all(_is_here(each) for each in (url, asked or url)):
        raise ValueError(
            f"{url.partition('?')[0]}: not https, so anybody on the way could send something else;"
            " use an address that begins with https:// (HF_ENDPOINT may also name a server on this"
            " machine)"
        )


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_url(url: str, minutes: float, most_bytes: int) -> bytes:
    """Return what a server sends; errors of the hub's client, and those of ``bounded``."""
    from huggingface_hub import get_session

    check_address(url)
    with bounded(minutes, most_bytes):
        answer = get_session().get(url, timeout=HEADER_SECONDS)
        if answer.status_code != 200:
            raise ValueError(f"HTTP {answer.status_code}")
        return bytes(answer.content)


@cache
def _bound_hub() -> None:
    """Give the hub's library a client that keeps the bounds of ``bounded``; before its version
    1 it takes none."""
    try:
        from huggingface_hub import constants, get_session, set_client_factory
    except ImportError:
        return
    default = get_session()
    own_hooks = default.event_hooks

    class BoundedClient(type(default)):  # type: ignore[misc]
        """The library's client, which also bounds the time until an answer begins."""

        def send(self, request: Any, *, stream: bool = False, **how: Any) -> Any:
            """Send a request; ``TimeoutError`` if its answer does not begin in time."""
            timeouts = request.extensions.get("timeout", {})
            # The library asks for lists and information without any timeout.
            bounded = dict.fromkeys(
                ("connect", "read", "write", "pool"), constants.HF_HUB_DOWNLOAD_TIMEOUT
            )
            given = {name: seconds for name, seconds in timeouts.items() if name in bounded}
            bounded |= {name: seconds for name, seconds in given.items() if seconds is not None}
            request.extensions["timeout"] = bounded
            _bounds.take(0, str(request.url))
            answer = _in_time(
                lambda: super(BoundedClient, self).send(request, stream=True, **how),
                str(request.url),
            )
            if not stream:
                try:
                    answer.read()
                finally:
                    answer.close()
            return answer

    def check_request(request: Any) -> None:
        check_address(str(request.url), constants.ENDPOINT)

    def client() -> Any:
        hooks = {
            "request": [*own_hooks["request"], check_request],
            "response": [*own_hooks["response"], _bound_answer],
        }
        return BoundedClient(event_hooks=hooks, follow_redirects=True, timeout=None)

    set_client_factory(client)


def _bound_answer(answer: Any) -> None:
    """Have an answer, as it comes and as it is unpacked, count against the bounds; called before
    its body is read."""
    from huggingface_hub import constants

    url = str(answer.request.url)
    is_file = not url.startswith(constants.ENDPOINT) or "/resolve" in answer.request.url.path
    most_bytes = max(_bounds.most_bytes, ANSWER_BYTES) if is_file else ANSWER_BYTES
    pause = answer.headers.get("Retry-After", "0")
    if not pause.isdigit() or int(pause) > LONGEST_PAUSE_SECONDS:
        del answer.headers["Retry-After"]
    answer.headers.pop("ratelimit", None)  # it too can ask for a pause of any length

    packed, unpacked = answer.stream, answer.iter_bytes

    def arriving(_: Any) -> Iterator[bytes]:
        for chunk in packed:
            _bounds.take(len(chunk), url)
            yield chunk

    def unpacking(chunk_size: int | None = None) -> Iterator[bytes]:
        n_bytes = 0
        for chunk in unpacked(chunk_size):
            n_bytes += len(chunk)
            if n_bytes > most_bytes:
                raise ValueError(f"{url} sends more than {most_bytes:,} bytes")
            yield chunk

    base = next(kind for kind in type(packed).__mro__ if kind.__name__ == "SyncByteStream")
    answer.stream = type(
        "BoundedStream", (base,), {"__iter__": arriving, "close": lambda _: packed.close()}
    )()
    answer.iter_bytes = unpacking


def _in_time(call: Callable[[], Result], url: str) -> Result:
    """Return what ``call`` returns; ``TimeoutError`` if it takes too long, when its thread is left
    alone.

    The client bounds each read of a socket only, and a server can send the lines before an answer
    byte by byte.
    """
    done: list[Result] = []
    failed: list[BaseException] = []
    context = contextvars.copy_context()

    def work() -> None:
        try:
            done.append(context.run(call))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(HEADER_SECONDS)
    if failed:
        raise failed[0]
    if not done:
        raise TimeoutError(f"{url} did not begin to answer within {HEADER_SECONDS:g} seconds")
    return done[0]
