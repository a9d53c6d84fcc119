"""A cache for what is read from files: each file is read once, until it changes."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from coupled_adam_bench.store import files

Args = TypeVarTuple("Args")
Result = TypeVar("Result")


def cached_by_file(read: Callable[[Path, *Args], Result]) -> Callable[[Path, *Args], Result]:
    """Return ``read`` with a cache: a file is read again when its size, its inode or its time of change differs."""

    @cache
    def remembered(_key: tuple[Any, ...], path: Path, *args: Any) -> Result:
        return read(path, *args)

    def cached(path: Path, *args: *Args) -> Result:
        try:
            status = path.stat()
        except FileNotFoundError:
            return read(path, *args)  # which says so in its own words
        key = (path.absolute(), status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
        return remembered(key, path, *args)

    return cached


@cached_by_file
def sha256_once(path: Path) -> str:
    """Return the SHA-256 of a file, computed once."""
    return files.sha256_file(path)
