"""A server on this machine that speaks the protocol of the Hugging Face hub, for the hub's own
libraries.

It answers what `huggingface_hub` and `datasets` ask of HF_ENDPOINT: information and trees of
repositories at a branch or commit, files with ETag and X-Repo-Commit, large files by a redirect to
a store, and the hub's error codes. Faults are injected by path. ``Here`` is a folder with a study
whose commands ask the server.
"""

import hashlib
import io
import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forks import python

from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study

LFS_BYTES = 1000
"""Files of this size and more are in the store of large files, to which the server redirects."""


def commit_of(files: dict[str, bytes]) -> str:
    """The commit of these files: another one for other contents."""
    hashes = {name: hashlib.sha1(content).hexdigest() for name, content in files.items()}
    return hashlib.sha1(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


@dataclass
class Repo:
    """The files of a repository by branch."""

    branches: dict[str, dict[str, bytes]]
    gated: int | None = None
    """Status with which its files are refused: 401 without a token, 403 with one that has no
    access."""

    def revision(self, name: str) -> tuple[str, dict[str, bytes]] | None:
        """The commit and the files of a branch or commit."""
        for branch, files in self.branches.items():
            if name in (branch, commit_of(files)):
                return commit_of(files), files
        return None


@dataclass
class Fault:
    """What happens to the next requests whose path matches, ``times`` times."""

    path: str
    times: int = 1
    method: str = "GET"
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    """Bytes of the answer after which the connection is closed."""
    content: bytes | None = None
    """Sent in place of what was asked for."""
    act: Callable[[BaseHTTPRequestHandler], None] | None = None
    """Called in place of an answer."""


class HubServer(ThreadingHTTPServer):
    """Serves ``repos`` by ``datasets/ORG/NAME`` or ``ORG/NAME``, and ``files`` by path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, Repo] = {}
        self.moved: dict[str, str] = {}
        self.files: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.log: list[tuple[str, str, int]] = []
        """Method, path and status of each request."""
        self.n_ranged = 0
        """Bytes of files that were sent because a range of them was asked for."""
        self.on_request: Callable[[str], None] = lambda path: None
        """Called with the path of each request before it is answered."""
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(
        self, name: str, files: dict[str, bytes], branch: str = "main", gated: int | None = None
    ) -> str:
        """Put the files of a branch into a repository; return their commit."""
        repo = self.repos.setdefault(name, Repo({}))
        repo.branches[branch] = files
        repo.gated = gated
        return commit_of(files)

    def sent(self, pattern: str) -> list[tuple[str, str, int]]:
        """The requests so far whose path matches, but for HEAD."""
        return [entry for entry in self.log if re.search(pattern, entry[1]) and entry[0] != "HEAD"]

    def take_fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.times > 0 and fault.method == method and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None

    def stored(self, sha256: str) -> bytes | None:
        """A large file by its hash."""
        for repo in self.repos.values():
            for files in repo.branches.values():
                for content in files.values():
                    if hashlib.sha256(content).hexdigest() == sha256:
                        return content
        return None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that are killed break their connections."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, *args: Any) -> None:
        """Say nothing on stderr."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _send(
        self, status: int, content: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        fault = self._fault
        self.server.log.append((self.command, self._path, status))
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            if fault is not None and fault.cut_after is not None:
                self.wfile.write(content[: fault.cut_after])
                self.wfile.flush()
                self.connection.close()
                self.close_connection = True
                return
            self.wfile.write(content)

    def _send_file(self, content: bytes, headers: dict[str, str]) -> None:
        """Send a file, or the range of its bytes that is asked for."""
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if asked is None:
            self._send(200, content, headers)
            return
        first, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
        part = content[first : last + 1]
        self.server.n_ranged += len(part)
        headers |= {
            "Content-Length": str(len(part)),
            "Content-Range": f"bytes {first}-{last}/{len(content)}",
        }
        self._send(206, part, headers)

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str, message: str) -> None:
        content = b"" if self.command == "HEAD" else json.dumps({"error": message}).encode()
        self._send(status, content, {"X-Error-Code": code, "X-Error-Message": message})

    def _answer(self) -> None:
        self._path = unquote(urlsplit(self.path).path)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        self.server.on_request(self._path)
        self._fault = self.server.take_fault(self.command, self._path)
        if self._fault is not None and self._fault.act is not None:
            self.close_connection = True
            self._fault.act(self)
        elif self._fault is not None and self._fault.status is not None:
            self._send(self._fault.status, b"{}", self._fault.headers)
        elif self._fault is not None and self._fault.content is not None:
            self._send(200, self._fault.content)
        elif (found := re.fullmatch(r"/store/([0-9a-f]{64})", self._path)) and (
            content := self.server.stored(found[1])
        ) is not None:
            self._send_file(content, {"ETag": f'"{found[1]}"'})
        elif self._path in self.server.files:
            self._send(200, self.server.files[self._path])
        elif found := re.fullmatch(
            r"/api/(datasets|models)/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/(.+))?", self._path
        ):
            self._api(found[1], found[2], found[3], found[4] or "main", body)
        elif found := re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)/resolve/(.+)", self._path):
            self._resolve(found[1], found[2])
        else:
            self._error(404, "RepoNotFound", "Repository not found")

    def _revision(self, repo: Repo, text: str) -> tuple[str, dict[str, bytes], str] | None:
        """The commit, the files and the path behind a revision, which can have slashes itself."""
        parts = text.split("/")
        for end in range(len(parts), 0, -1):
            if (found := repo.revision("/".join(parts[:end]))) is not None:
                return *found, "/".join(parts[end:])
        self._error(404, "RevisionNotFound", f"Invalid rev id: {text}")
        return None

    def _repo(self, name: str) -> Repo | None:
        if name in self.server.repos:
            return self.server.repos[name]
        if name in self.server.moved:
            target = self.path.replace(
                name.removeprefix("datasets/"), self.server.moved[name].removeprefix("datasets/")
            )
            self._send(307, b"", {"Location": target})
            return None
        self._error(404, "RepoNotFound", "Repository not found")
        return None

    def _api(self, kind: str, name: str, what: str | None, rest: str, body: bytes) -> None:
        repo = self._repo(f"datasets/{name}" if kind == "datasets" else name)
        if repo is None or (found := self._revision(repo, rest)) is None:
            return
        commit, files, folder = found
        if what in (None, "revision"):
            siblings = [{"rfilename": path} for path in sorted(files)]
            self._json(
                {"id": name, "sha": commit, "private": False, "siblings": siblings, "tags": []}
            )
            return
        if what == "paths-info":
            fields = parse_qs(body.decode()) if not body.startswith(b"{") else json.loads(body)
            asked = fields["paths"] if isinstance(fields["paths"], list) else [fields["paths"]]
            folders = {
                "/".join(path.split("/")[:n])
                for path in files
                for n in range(1, path.count("/") + 1)
            }
            entries = [_entry(path, files[path]) for path in asked if path in files]
            self._json(
                entries
                + [
                    {"type": "directory", "path": path, "oid": "0"}
                    for path in asked
                    if path in folders
                ]
            )
            return
        recursive = (
            parse_qs(urlsplit(self.path).query).get("recursive", ["false"])[0].lower() == "true"
        )
        prefix = f"{folder}/" if folder else ""
        below = {
            path: content for path, content in sorted(files.items()) if path.startswith(prefix)
        }
        if folder and not below:
            self._error(404, "EntryNotFound", f"{folder} does not exist")
            return
        entries, folders = [], set()
        for path, content in below.items():
            inner = path.removeprefix(prefix).split("/")
            folders |= {
                prefix + "/".join(inner[:n])
                for n in range(1, len(inner) if recursive else min(2, len(inner)))
            }
            if recursive or len(inner) == 1:
                entries.append(_entry(path, content))
        self._json(
            [{"type": "directory", "path": path, "oid": "0", "size": 0} for path in sorted(folders)]
            + entries
        )

    def _resolve(self, name: str, rest: str) -> None:
        repo = self._repo(name)
        if repo is None or (found := self._revision(repo, rest)) is None:
            return
        if repo.gated is not None:
            self._error(repo.gated, "GatedRepo", f"Access to {name} is restricted.")
            return
        commit, files, path = found
        if path not in files:
            self._error(404, "EntryNotFound", f"Entry not found: {path}")
            return
        content, headers = files[path], {"X-Repo-Commit": commit}
        if len(content) < LFS_BYTES:
            self._send_file(content, headers | {"ETag": f'"{hashlib.sha1(content).hexdigest()}"'})
            return
        sha256 = hashlib.sha256(content).hexdigest()
        headers |= {"X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{sha256}"'}
        # On another host, as at the hub: its library follows redirects within a host before it
        # reads the headers.
        self._send(
            302,
            b"",
            headers | {"Location": f"http://localhost:{self.server.server_port}/store/{sha256}"},
        )


def _entry(path: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "type": "file",
        "path": path,
        "size": len(content),
        "oid": hashlib.sha1(content).hexdigest(),
    }
    if len(content) >= LFS_BYTES:
        entry["lfs"] = {
            "oid": hashlib.sha256(content).hexdigest(),
            "size": len(content),
            "pointerSize": 134,
        }
    return entry


@contextmanager
def serving() -> Iterator[HubServer]:
    """A server that runs meanwhile."""
    server = HubServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


TEXTS = [f"the {i} worst\nof {i * i} times, the best" * (1 + i % 7) for i in range(400)]


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=20, compression="none")
    return sink.getvalue()


def four_files(folder: str = "data") -> dict[str, bytes]:
    """The texts in four files of parquet."""
    parts = [[{"text": text} for text in TEXTS[100 * i : 100 * i + 100]] for i in range(4)]
    return {
        f"{folder}/train-{i:05d}-of-00004.parquet": parquet(rows) for i, rows in enumerate(parts)
    }


class Here:
    """A folder with a study, whose commands run in processes of their own."""

    def __init__(self, folder: Path, url: str, tokenizer: Path) -> None:
        self.folder, self.url, self.tokenizer = folder, url, tokenizer
        self.first = ""
        """Python code that a command runs before it starts."""

    def study(self, hub_minutes: float = 0.5, **sections: dict[str, Any]) -> dict[str, Any]:
        """Write the plan of a study of small settings, some of which ``sections`` replace; return
        the settings."""
        values: dict[str, Any] = {
            "study": "s",
            "paths": {"tokenizer": str(self.tokenizer), "word_similarity": "sets"},
            "data": {
                "name": "text",
                "source": {"kind": "hub", "dataset": "org/set"},
                "tokenizer": "file",
                "vocab_size": 512,
                "split": {"val_fraction": 0.1, "test_fraction": 0.1},
            },
            "models": ["gpt2-2x32"],
            "training": {"seq_len": 64, "batch_sequences": 2, "warmup_steps": 5},
            "grid": [{"models": ["gpt2-2x32"], "tokens": [{"steps": 10}], "optimizers": ["adamw"]}],
            "execution": {"hub_minutes": hub_minutes},
        }
        for section, changes in sections.items():
            values[section] = values.get(section, {}) | changes
        write_sealed(self.folder / "plan.json", make_plan(parse_study(values)).to_json())
        return values

    def source(
        self, max_tokens: int | None = None, hub_minutes: float = 0.5, **source: Any
    ) -> None:
        """Write the plan of a study with this source."""
        self.study(hub_minutes, data={"source": {"kind": "hub"} | source, "max_tokens": max_tokens})

    @property
    def environment(self) -> dict[str, str]:
        names = ("HF_HUB_OFFLINE", "HF_TOKEN", "HF_DATASETS_OFFLINE")
        kept = {name: value for name, value in os.environ.items() if name not in names}
        return kept | {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(self.folder / "hf"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    def start(self, *arguments: str, **environment: str) -> Any:
        code = (
            f"import sys\n{self.first}\nfrom coupled_adam_bench.cli import main;"
            " sys.exit(main(sys.argv[1:]))"
        )
        command = ["-c", code, *arguments, "--plan", "plan.json"]
        return python(
            "pipeline without a hub", command, self.folder, self.environment | environment
        )

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A file system of its own, in place of a folder."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)
