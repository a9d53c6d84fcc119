"""Servers that lie about what they send, or never end: each is given up in bounded time and
memory."""

import gzip
import json
import re
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from forks import python
from hub_server import Fault, Here, HubServer, four_files

from coupled_adam_bench.data.hub import _check_file
from coupled_adam_bench.data.patience import PlaceError
from coupled_adam_bench.study.catalogue.presets import Place

LIST, FILE = "org/set$", "/store/"
# One process for all lies, because the libraries take seconds to import. It does not sleep, and
# notes what it would.
CODE = """import json, resource, sys, time
from pathlib import Path
slept = []
time.sleep = slept.append
from coupled_adam_bench.data import hub
from embedding_geometry import transport
from coupled_adam_bench.study.catalogue.presets import Place
transport.STALL_SECONDS, transport.HEADER_SECONDS = 1.0, 1.0
place, found = Place("org/set"), {}
listing = hub.list_place(place, 0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for number, lie in enumerate(json.loads(sys.argv[1])):
    transport.read_url(f"{sys.argv[2]}/next/{number}", 0, 100)
    slept.clear()
    start = time.monotonic()
    try:
        if lie.startswith("a file"):
            hub.download(listing, listing.files[0], Path("files"), 0)
        elif lie.startswith("an archive"):
            transport.read_url(f"{sys.argv[2]}/archive.zip", 0, 1000)
        else:
            hub.list_place(place, 0)
        error = "none"
    except (ValueError, TimeoutError) as problem:
        error = f"{type(problem).__name__}: {problem}"
    except BaseException as problem:
        error = f"no sentence, but {problem!r}"
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    found[lie] = (error, time.monotonic() - start, used / 1000, max(slept, default=0))
print(json.dumps(found))
"""


def started(handler: BaseHTTPRequestHandler, **headers: str) -> Any:
    handler.send_response(200)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    return handler.wfile


def nothing(_: BaseHTTPRequestHandler) -> None:
    time.sleep(20)


def slow_header(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    for _ in range(200):
        handler.wfile.write(b"x")
        time.sleep(0.1)


def slow_body(handler: BaseHTTPRequestHandler) -> None:
    out = started(handler, Content_Length="1000000")
    for _ in range(200):
        out.write(b" ")
        time.sleep(0.1)


def endless(handler: BaseHTTPRequestHandler) -> None:
    out = started(handler)
    while True:
        out.write(b"[" * 2**20)


def ten_terabytes(handler: BaseHTTPRequestHandler) -> None:
    out = started(handler, Content_Length=str(10**13))
    while True:
        out.write(b" " * 2**20)


BOMB = gzip.compress(bytes(2**27), 1)


def bomb(handler: BaseHTTPRequestHandler) -> None:
    started(handler, Content_Encoding="gzip", Content_Length=str(len(BOMB))).write(BOMB)


def pages(handler: BaseHTTPRequestHandler) -> None:
    url = f"http://127.0.0.1:{handler.server.server_port}{handler.path}"  # type: ignore[attr-defined]
    started(handler, Content_Length="2", Link=f'<{url}>; rel="next"').write(b"[]")


def elsewhere(handler: BaseHTTPRequestHandler, where: str) -> None:
    handler.send_response(302)
    handler.send_header("Location", where)
    handler.send_header("Content-Length", "0")
    handler.send_header(
        "Connection", "close"
    )  # or the client may ask again on a connection that is about to close
    handler.end_headers()


def circle(handler: BaseHTTPRequestHandler) -> None:
    elsewhere(handler, handler.path)


def plain(handler: BaseHTTPRequestHandler) -> None:
    elsewhere(handler, "http://hub.example.org/set")


def tree(*paths: str) -> bytes:
    return json.dumps(
        [{"type": "file", "path": path, "size": 5, "oid": "0"} for path in paths]
    ).encode()


TREE = "/tree/"
DAY = {"Retry-After": "86400", "ratelimit": '"api";r=0;t=86400'}
LIES: dict[str, tuple[Fault, str]] = {
    "no answer": (Fault(LIST, act=nothing), "HubAwayError: .*TimeoutError|ReadTimeout"),
    "a header byte by byte": (
        Fault(LIST, act=slow_header),
        "did not begin to answer within 1 seconds",
    ),
    "an answer byte by byte": (Fault(LIST, act=slow_body), "less than 10,000 bytes a second"),
    "an answer without end": (Fault(LIST, act=endless), "sends more than 33,554,432 bytes"),
    "an answer of 10 TB": (Fault(LIST, act=ten_terabytes), "sends more than 33,554,432 bytes"),
    "a packed answer": (Fault(LIST, act=bomb), "sends more than 33,554,432 bytes"),
    "a tree without end": (Fault(TREE, act=endless), "sends more than 33,554,432 bytes"),
    "a tree of pages without end": (Fault(TREE, act=pages), "less than 10,000 bytes a second"),
    "redirects without end": (Fault(LIST, act=circle), "TooManyRedirects"),
    "a redirect to plain http": (Fault(LIST, act=plain), "http://hub.example.org/set: not https"),
    "a pause of a day": (
        Fault(TREE, status=429, headers=DAY),
        "HubAwayError: .*HTTP 429; gave up after 0 minutes",
    ),
    "no service": (Fault(LIST, status=500), "HubAwayError: .*HTTP 500; gave up after 0 minutes"),
    "no JSON": (Fault(LIST, content=b"<html>"), "PlaceError: dataset 'org/set' cannot be read"),
    "a list of numbers": (
        Fault(TREE, content=b"[1, 2]"),
        "PlaceError: dataset 'org/set' cannot be read",
    ),
    "a tree of another": (
        Fault(TREE, content=tree("a.txt")),
        "PlaceError: dataset .org/set. does not exist",
    ),
    "a file without end": (
        Fault(FILE, act=endless),
        r"sends more than [0-9,]+ bytes|Consistency check failed",
    ),
    "a file byte by byte": (Fault(FILE, act=slow_body), "less than 10,000 bytes a second"),
    "a file of 10 TB": (
        Fault(FILE, act=ten_terabytes),
        r"sends more than [0-9,]+ bytes|Consistency check failed",
    ),
    "an archive without end": (Fault("/archive", act=endless), "sends more than 33,554,432 bytes"),
    "an archive byte by byte": (
        Fault("/archive", act=slow_body),
        "less than 10,000 bytes a second",
    ),
}


@pytest.mark.fault(
    "text and data",
    "a server of datasets, files or word lists never ends an answer, sends it byte by byte or"
    " packed a thousandfold, leads in a circle, asks for a pause of a day, or sends what is no"
    " list",
    "its answer is given up in bounded time and memory, with a sentence",
)
def test_what_a_server_sends_is_bounded(hub: HubServer, here: Here, tmp_path: Path) -> None:
    hub.add("datasets/org/set", four_files())
    for number, (fault, _) in enumerate(LIES.values()):
        fault.times = 0
        hub.files[f"/next/{number}"] = b"on"

    def switch(path: str) -> None:
        """Have the lie act whose turn it is."""
        if found := re.fullmatch(r"/next/(\d+)", path):
            hub.faults = [list(LIES.values())[int(found[1])][0]]
            hub.faults[0].times = 1000

    hub.on_request = switch
    environment = here.environment | {"HF_HUB_DOWNLOAD_TIMEOUT": "2", "HF_HUB_ETAG_TIMEOUT": "2"}
    command = ["-c", CODE, json.dumps(list(LIES)), hub.url]
    out, errors = python("pipeline without a hub", command, tmp_path, environment).communicate(
        timeout=300
    )
    assert out, errors
    found = json.loads(out)
    for lie, (_, message) in LIES.items():
        error, seconds, megabytes, slept = found[lie]
        assert re.search(message, error), (lie, error)
        assert "no sentence" not in error
        assert seconds < 20 and megabytes < 600 and slept <= 300, (lie, found[lie])


@pytest.mark.fault(
    "text and data",
    "the hub lists a file whose name leads out of the folder into which its files are downloaded",
    "the data set is refused before anything is downloaded, or removed to make room for it",
)
@pytest.mark.parametrize("path", ["../../x.jsonl", "/home/x.jsonl", "data/../../x.jsonl"])
def test_a_file_that_leads_elsewhere(path: str) -> None:
    with pytest.raises(PlaceError, match=r"x\.jsonl leads out of the folder of the data set"):
        _check_file(Place("org/set"), Path(path))
