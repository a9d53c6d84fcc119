"""Atomic writes, which leave a file either whole or absent, checksums, and what is read once or
comes late."""

import gzip
import hashlib
import io
import json
import os
import secrets
import shutil
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

Args = TypeVarTuple("Args")
Result = TypeVar("Result")

SEAL = "sha256"
"""Key of a sealed JSON object that holds the SHA-256 of its other contents."""
LATENCY_WAIT = "COUPLED_ADAM_BENCH_LATENCY_WAIT"
"""Variable with the seconds that a command waits for what other jobs have written; without it, it
does not wait."""
_POLL_SECONDS = 0.2
ASIDE = ".damaged-"
"""What the name of a file that was set aside has before its number."""


def await_files(paths: Iterable[Path]) -> None:
    """Wait until a shared file system shows all ``paths``, at most the seconds of ``LATENCY_WAIT``.

    A file that is still missing then is left to its reader, who names it.
    """
    deadline = time.monotonic() + float(os.environ.get(LATENCY_WAIT, "0"))
    missing = [path for path in paths if not path.exists()]
    while missing and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        for folder in {path.parent for path in missing}:
            with suppress(OSError):
                # A client of NFS then asks the server, and does not remember what was missing.
                list(folder.iterdir())
        missing = [path for path in missing if not path.exists()]


def move_aside(path: Path) -> Path:
    """Rename a file or a folder to the first free ``NAME.damaged-1``, and return where it is."""
    names = (path.with_name(f"{path.name}{ASIDE}{number}") for number in count(1))
    return path.rename(next(name for name in names if not name.exists()))


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path``, which replaces it if the block succeeds and is
    deleted otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, contents: bytes) -> None:
    """Write ``contents`` to ``path`` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(contents)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically, as UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` to ``path`` atomically; NaN becomes ``NaN``, which Python, pandas and JSON5
    can read."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def kind_of(path: Path) -> str:
    """Return what stands at a path, in words, without opening it."""
    if not path.exists():
        return "a link to nothing"
    return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "a device")


def check_plain(path: Path) -> Path:
    """Return a path; ``ValueError`` for a pipe, a socket or a device, whose opening may take for
    ever."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError(
            f"{path}: {kind_of(path)} stands where a file belongs; remove it, or put the file there"
        )
    return path


def read_json(path: Path) -> Any:
    """Read a JSON file; raise ``ValueError`` with its path if it is missing or not valid."""
    try:
        return json.loads(check_plain(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not valid JSON ({error}); delete it and run again") from None


def read_folder(folder: Path, max_bytes: int, max_files: int) -> dict[str, bytes]:
    """Return the contents of all files of a stranger's folder by their paths in it, hidden ones
    too.

    ``ValueError`` for a folder that is too large, and for a link, a pipe or a device, before it is
    opened; the folder may be no link either.
    """
    contents: dict[str, bytes] = {}
    left = max_bytes
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise ValueError(f"{folder}: no folder, or a link to one; give a folder of plain files")
    for place, folders, names in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *names)):
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode):
                continue
            if not stat.S_ISREG(status.st_mode):
                raise ValueError(
                    f"{path}: a link, a pipe or a device; allowed are plain files: remove it"
                )
            left -= status.st_size
            if left < 0 or len(contents) == max_files:
                raise ValueError(
                    f"{folder}: too large; allowed are {max_bytes:,} bytes in {max_files:,} files"
                )
            contents[path.relative_to(folder).as_posix()] = path.read_bytes()
    return contents


def gunzip(path: Path, packed: bytes, max_bytes: int) -> bytes:
    """Return what a stranger's gzip file, read from ``path``, unpacks to; ``ValueError`` if it is
    damaged or large."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            contents = file.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error):
        raise ValueError(f"{path}: no whole gzip file; make it again") from None
    if len(contents) > max_bytes:
        raise ValueError(f"{path}: unpacks to more than {max_bytes:,} bytes, which are allowed")
    return contents


def seal(value: dict[str, Any]) -> str:
    """Return the SHA-256 of a JSON object's contents without its seal, independent of key order and
    layout."""
    contents = {key: inner for key, inner in value.items() if key != SEAL}
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object to ``path`` atomically, with the SHA-256 of its contents under the key
    ``sha256``."""
    write_json(path, {**value, SEAL: seal(value)})


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a JSON object that :func:`write_sealed` wrote and return it without its seal.

    Raises ``ValueError`` with the path if the file is missing or its contents have changed.
    """
    value = read_json(path)
    if not isinstance(value, dict) or value.pop(SEAL, None) != seal(value):
        raise ValueError(
            f"{path}: its contents do not match its own SHA-256: damaged, edited, or of another"
            " version of this program"
        )
    return value


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with check_plain(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_by_file(read: Callable[[Path, *Args], Result]) -> Callable[[Path, *Args], Result]:
    """Return ``read`` with a cache: a file is read again when its size, its inode or its time of
    change differs."""

    @cache
    def remembered(_key: tuple[Any, ...], path: Path, *args: Any) -> Result:
        return read(path, *args)

    def cached(path: Path, *args: *Args) -> Result:
        try:
            status = path.stat()
        except FileNotFoundError:
            return read(path, *args)  # which says so in its own words
        key = (
            path.absolute(),
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_size,
            status.st_ino,
        )
        return remembered(key, path, *args)

    return cached


@cached_by_file
def sha256_once(path: Path) -> str:
    """Return the SHA-256 of a file, computed once."""
    return sha256_file(path)


def digest(value: Any, length: int = 10) -> str:
    """Return the first ``length`` hexadecimal digits of the SHA-256 of a JSON value, independent of
    key order."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:length]
