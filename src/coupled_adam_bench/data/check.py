"""Comparison of prepared data with ``meta.json``; it imports nothing heavy, as it runs before the
first job."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from coupled_adam_bench.store.files import await_files, read_sealed, sha256_file, write_sealed

META = "meta.json"
VERIFIED = "verified.json"
"""SHA-256 of large files as they were read last, each with inode, size and times of the file
then."""
DAMAGED = "meta.json.damaged"
"""Name of ``meta.json`` after damage was detected, until the data are prepared again."""
TOKENIZER = "tokenizer"
TASKS = "tasks"
WORD_SIMILARITY = "word_similarity"
WORD_PAIRS = f"{WORD_SIMILARITY}/synthetic.tsv"
TREES = (TOKENIZER, TASKS, WORD_SIMILARITY)
"""Subfolders of the data."""
SMALL_BYTES = 64 * 2**20
"""Size below which a file's contents are checked when the workflow starts; for larger files, bins,
only the size is."""


@dataclass(frozen=True)
class Checksum:
    """Size and SHA-256 of a file of the data."""

    bytes: int
    sha256: str


def checksum(path: Path) -> Checksum:
    """Return size and SHA-256 of a file."""
    return Checksum(path.stat().st_size, sha256_file(path))


def checksums_to_json(files: Mapping[str, Checksum]) -> dict[str, Any]:
    """Return checksums by name as a JSON value, sorted."""
    return {name: asdict(files[name]) for name in sorted(files)}


def read_meta(path: Path) -> tuple[dict[str, Any], dict[str, Checksum]]:
    """Read a ``meta.json`` and return its values and the checksums of all other files of the data
    by name.

    Raises ``ValueError`` if it is missing, damaged or has another form.
    """
    values = read_sealed(path)
    try:
        return values, {name: Checksum(**described) for name, described in values["files"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not the description of token bins ({error!r})") from None


def split_checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each split's bin by the split's name; see :func:`read_meta` for
    errors."""
    values, files = read_meta(folder / META)
    return {split: files[described["file"]].sha256 for split, described in values["splits"].items()}


@lru_cache(maxsize=1024)
def _sha256(path: Path, signature: tuple[int, ...]) -> str:
    """Return the SHA-256 of a file, kept in this process for as long as the file has its signature.

    That of a large file is kept in its folder, too: every job would read a corpus of terabytes
    again.
    """
    kept_signature, size = list(signature[1:]), signature[2]
    if size < SMALL_BYTES:
        return sha256_file(path)
    kept, known = path.parent / VERIFIED, {}
    with suppress(OSError, ValueError):  # missing or damaged: it is written anew
        known = read_sealed(kept)
    file = known.get(path.name, {})
    if file.get("signature") != kept_signature:
        file = {"signature": kept_signature, "sha256": sha256_file(path)}
        with suppress(OSError):  # a folder that may only be read keeps nothing
            write_sealed(kept, known | {path.name: file})
    return str(file["sha256"])


def signature(path: Path) -> tuple[int, ...]:
    """Return what differs when a file was written or replaced: device, inode, size and the times of
    both changes."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def file_damage(path: Path, expected: Checksum, contents: bool = True) -> str | None:
    """Return a sentence that says how a file differs from its checksum, or ``None``; without
    ``contents``, by size."""
    if not path.is_file():
        return f"{path}: missing"
    if (size := path.stat().st_size) != expected.bytes:
        return f"{path}: {size} bytes, but {META} says {expected.bytes}"
    # The contents are read last, as they take longest.
    if contents:
        sha256 = _sha256(path, signature(path))
        if sha256 != expected.sha256:
            return (
                f"{path}: SHA-256 {sha256}, but {META} says {expected.sha256}: damaged or changed"
            )
    return None


def data_is_damaged(folder: Path, below_bytes: float = SMALL_BYTES) -> str | None:
    """Return a sentence that names a damaged file of the data; ``None`` if all are whole, or not
    prepared yet.

    It compares the seal of ``meta.json``, the sizes of all files, and the contents of files below
    ``below_bytes``.
    """
    if not (folder / META).exists():
        return None
    try:
        _, files = read_meta(folder / META)
        problems = [
            file_damage(folder / name, file, file.bytes < below_bytes)
            for name, file in files.items()
        ]
    except (ValueError, OSError) as error:
        return str(error)
    return next((problem for problem in problems if problem), None)


def mark_damaged(folder: Path) -> str:
    """Rename ``meta.json``, so that the next start of the workflow prepares the data; return advice
    for the user."""
    try:
        (folder / META).replace(folder / DAMAGED)
    except FileNotFoundError:  # another process has renamed it
        pass
    except OSError as error:
        return f"delete {folder / META} ({error}) and start again: it will be prepared anew"
    return "start again: it will be prepared anew"


def _open_meta(folder: Path) -> tuple[dict[str, Any], dict[str, Checksum]]:
    """Read ``meta.json``; mark it if it is damaged."""
    path = folder / META
    await_files([path])
    if not path.is_file():
        raise ValueError(f"{path}: no such file; run the data stage")
    try:
        return read_meta(path)
    except ValueError as error:
        raise ValueError(f"{error}; {mark_damaged(folder)}") from None


def open_meta(folder: Path) -> dict[str, Any]:
    """Return the values of ``meta.json``; if it is damaged, mark it and raise ``ValueError`` with
    advice."""
    return _open_meta(folder)[0]


def verified_file(folder: Path, name: str, contents: bool = True) -> Path:
    """Return the path of a file of the data after comparing its size and contents with
    ``meta.json``.

    A file is read once per process. If it is damaged, the data are marked, and a ``ValueError``
    gives advice.
    """
    if problem := file_damage(folder / name, _open_meta(folder)[1][name], contents):
        raise ValueError(f"{problem}; {mark_damaged(folder)}")
    return folder / name


def verified_tree(folder: Path, prefix: str) -> list[Path]:
    """Return the sorted paths of all files in a subfolder of the data, each verified as by
    :func:`verified_file`."""
    return [
        verified_file(folder, name)
        for name in sorted(_open_meta(folder)[1])
        if name.startswith(f"{prefix}/")
    ]
