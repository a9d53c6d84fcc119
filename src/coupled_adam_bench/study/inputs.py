"""Finds and identifies the files that a study reads: text, tokenizer, own optimizers; it imports nothing heavy."""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from coupled_adam_bench.store.files import digest, sha256_file
from coupled_adam_bench.study.config import CustomSettings, Optimizer, Study
from coupled_adam_bench.study.dotted import changed_code, code_of

PACKINGS = (".gz", ".xz", ".zst")
"""Endings of packed files."""
TEXT_SUFFIXES = tuple(kind + packing for kind in (".txt", ".jsonl", ".parquet") for packing in ("", *PACKINGS))
_SAMPLE_BYTES = 65536
_MAGIC = re.compile(r"[*?\[]")


class _TextFile(NamedTuple):
    """A text file, with its name relative to the root of the pattern that matched it."""

    name: str
    path: Path
    pattern: str


@contextmanager
def _readable(setting: str, path: Path) -> Iterator[None]:
    """Turn an ``OSError`` into a ``ValueError`` that names the file and the setting that led to it."""
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else path
        raise ValueError(
            f"{setting}: {where} cannot be read: {error.strerror}; make it readable, or leave it out"
        ) from None


def text_files(patterns: tuple[str, ...]) -> list[tuple[str, Path]]:
    """Return the text files of folders, files and globs as sorted pairs (name within the pattern's root, path).

    Links are followed, and a file that several patterns name is read once. Raises ``ValueError`` for a pattern that
    matches no text file, for a file that would be read twice under two names, for links that form a loop, and for files
    that cannot be read.
    """
    first: dict[tuple[int, int], _TextFile] = {}
    for pattern in patterns:
        with _readable("paths.text", Path(pattern)):
            matches = {file.path: file for file in _matches(pattern)}
            for file in matches.values():
                status = file.path.stat()
                other = first.setdefault((status.st_dev, status.st_ino), file)
                if other.name != file.name or os.path.abspath(other.path) != os.path.abspath(file.path):  # noqa: PTH100
                    raise ValueError(_twice(other, file))
        if not matches:
            raise ValueError(
                f"paths.text: {pattern!r} matches no text file; allowed endings: {', '.join(TEXT_SUFFIXES)}"
            )
    return sorted((file.name, file.path) for file in first.values())


def _twice(one: _TextFile, other: _TextFile) -> str:
    if one.pattern != other.pattern:
        advice = f"it is matched by {one.pattern!r} and by {other.pattern!r}: leave one of them out"
    else:
        advice = (
            f"a link leads from one place to the other: remove it, or name the folders without it (now {one.pattern!r})"
        )
    return (
        f"paths.text: {one.path} and {other.path} are the same file and would be read twice, as {one.name!r} and "
        f"{other.name!r}; {advice}"
    )


def _matches(pattern: str) -> Iterator[_TextFile]:
    """Yield the text files that a folder, a file or a glob names."""
    path = Path(pattern)
    files: Iterable[Path] = ()
    if path.is_dir():
        root, files = path, _expand(path, ["**", "*"], True, ())
    elif path.exists() or path.is_symlink():
        root, files = path.parent, (path,)
    elif _MAGIC.search(pattern):
        first = next(index for index, part in enumerate(path.parts) if _MAGIC.search(part))
        root = Path(*path.parts[:first])
        if root.is_dir():
            files = _expand(root, list(path.parts[first:]), False, ())
    for file in files:
        if file.name.endswith(TEXT_SUFFIXES) and _is_file(file):
            yield _TextFile(str(file.relative_to(root)), file, pattern)


def _expand(folder: Path, segments: list[str], hidden: bool, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    """Yield the paths below a folder that match the segments of a glob; ``above`` identifies its parent folders."""
    segment, *rest = segments
    if not _MAGIC.search(segment):
        path = folder / segment
        if path.exists() or path.is_symlink():
            yield from _expand(path, rest, hidden, above) if rest else (path,)
        return
    status = folder.stat()
    here = (status.st_dev, status.st_ino)
    if here in above:
        raise ValueError(
            f"paths.text: {folder} is a link to a folder that it lies in, a loop, so that its text would be read again "
            "and again; remove the link, or name the files without it"
        )
    entries = sorted(folder.iterdir())
    if segment == "**":
        yield from _expand(folder, rest or ["*"], hidden, above)
        for entry in entries:
            if entry.is_dir() and (hidden or not entry.name.startswith(".")):
                yield from _expand(entry, segments, hidden, (*above, here))
        return
    for entry in entries:
        if fnmatchcase(entry.name, segment) and (hidden or segment.startswith(".") or not entry.name.startswith(".")):
            if not rest:
                yield entry
            elif entry.is_dir():
                yield from _expand(entry, rest, hidden, above)


def _is_file(path: Path) -> bool:
    """Tell whether a path is a regular file or, if not, a folder; raise ``ValueError`` for anything else."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise ValueError(f"paths.text: {path} is a link to nothing; remove it, or mend it") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ValueError(f"paths.text: {path} is a pipe, a socket or a device, not a file; leave it out")
    return stat.S_ISREG(mode)


def fingerprints(patterns: tuple[str, ...]) -> list[list[Any]]:
    """Identify text files by name, size, and first and last 64 KiB, which is fast for any size and ignores the path."""
    prints = []
    for name, path in text_files(patterns):
        with _readable("paths.text", path), path.open("rb") as file:
            size = path.stat().st_size
            head = file.read(_SAMPLE_BYTES)
            file.seek(max(size - _SAMPLE_BYTES, 0))
            tail = file.read(_SAMPLE_BYTES)
        prints.append([name, size, digest([head.hex(), tail.hex()], 64)])
    return prints


def tokenizer_file(path: str) -> Path:
    """Return the ``tokenizer.json`` at ``path``, a file or its folder; raise ``ValueError`` if it does not exist."""
    file = Path(path)
    with _readable("paths.tokenizer", file):
        if file.is_dir():
            file = file / "tokenizer.json"
        if not file.is_file():
            raise ValueError(f"paths.tokenizer: {file} does not exist; give a tokenizer.json or its folder")
    return file


def tokenizer_sha256(path: str) -> str:
    """Return the SHA-256 of the ``tokenizer.json`` at ``path``."""
    file = tokenizer_file(path)
    with _readable("paths.tokenizer", file):
        return sha256_file(file)


def with_code(study: Study) -> Study:
    """Return a study whose own optimizers have their code, that which is here; ``{}`` stands for code that is not here.

    ``ValueError`` if the study names other code.
    """
    if not any(isinstance(optimizer, CustomSettings) for block in study.grid for optimizer in block.optimizers):
        return study
    blocks = [block.model_copy(update={"optimizers": tuple(map(_with_code, block.optimizers))}) for block in study.grid]
    return study.model_copy(update={"grid": tuple(blocks)})


def _with_code(optimizer: Optimizer) -> Optimizer:
    if not isinstance(optimizer, CustomSettings):
        return optimizer
    try:
        here = code_of(optimizer.path)
    except ValueError:  # which stops whatever trains: see training/checks.py
        here = {}
    if here and optimizer.code and (changed := changed_code(optimizer.path, optimizer.code)):
        raise ValueError(
            f"{optimizer.key}.code: the study names other code of {optimizer.path} than is here ({changed}); restore "
            "it, or leave out `code` to train with what is here"
        )
    return optimizer.model_copy(update={"code": optimizer.code or here})
