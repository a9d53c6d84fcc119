"""Finds and identifies the files that a study reads: text, tokenizer, own optimizers; it imports
nothing heavy."""

import operator
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob, has_magic
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from coupled_adam_bench.store.files import digest, sha256_file
from coupled_adam_bench.store.paths import RESULTS
from coupled_adam_bench.study.plan.dotted import changed_code, code_of
from coupled_adam_bench.study.settings import Own, Study
from embedding_geometry.json_file import read_object
from embedding_geometry.user_files import check_beginning, is_hidden, list_folder

PACKINGS = (".gz", ".xz", ".zst")
"""Endings of packed files."""
TEXT_SUFFIXES = tuple(
    kind + packing for kind in (".txt", ".jsonl", ".parquet") for packing in ("", *PACKINGS)
)
TOKENIZER_CONFIG = "tokenizer_config.json"
EOT_NAMES = ("<|endoftext|>", "</s>", "<eos>")
"""Common names of the end-of-text token, in the order in which they are looked for."""
_SAMPLE_BYTES = 65536


@contextmanager
def _readable(setting: str, path: Path) -> Iterator[None]:
    """Turn an ``OSError`` into a ``ValueError`` that names the file and the setting that led to
    it."""
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else path
        raise ValueError(
            f"{setting}: {where} cannot be read: {error.strerror}; make it readable, or leave"
            " it out"
        ) from None


def text_files(patterns: tuple[str, ...]) -> list[tuple[str, Path]]:
    """Return the text files of folders, files and globs as sorted pairs (name within the pattern's
    root, path).

    A file is one of text by its ending, in small or capital letters. Links are followed, and a file
    that several patterns name is read once. Raises ``ValueError`` for a pattern that matches no
    text file, for a file that would be read twice under two names, or packed and unpacked, and for
    files that cannot be read.
    """
    found: dict[Path, tuple[str, Path]] = {}
    for pattern in patterns:
        with _readable("paths.text", Path(pattern)):
            root, names = _matches(pattern)
            names = [name for name in names if _is_text(name)]
            for name in sorted(names):
                path = root / name
                known, other = found.setdefault(path.resolve(strict=True), (name, path))
                if known != name:
                    raise ValueError(
                        f"paths.text: {other} and {path} are the same file and would be read twice,"
                        f" as {known!r} and {name!r}: remove the link, or leave one of the"
                        " patterns out"
                    )
        if not names:
            raise ValueError(
                f"paths.text: {pattern!r} matches no text file; allowed endings:"
                f" {', '.join(TEXT_SUFFIXES)}"
                + "".join(f"; {path} is hidden, so it is not read" for path in hidden_in(pattern))
            )
    files = sorted(found.values())
    _check_unpacked([path for _, path in files])
    return files


def _check_unpacked(files: list[Path]) -> None:
    """Raise ``ValueError`` for a file that lies beside its own packed form."""
    there = set(files)
    for path in files:
        if path.suffix.lower() in PACKINGS and path.with_suffix("") in there:
            raise ValueError(
                f"paths.text: {path.with_suffix('')} and {path} would both be read, and one seems"
                " to be the other packed: remove one of them, or give them other names"
            )


def other_files(patterns: tuple[str, ...]) -> Counter[str]:
    """Return how many files the patterns name that are not read as text, by their endings; hidden
    ones do not count."""
    found: set[Path] = set()
    for pattern in patterns:
        root, names = _matches(pattern)
        found |= {
            root / name for name in names if not _is_text(name) and not is_hidden(Path(name).name)
        }
    return Counter(path.suffix or "no ending" for path in found)


def hidden_in(pattern: str) -> list[Path]:
    """Return the hidden files and folders in a folder of text, which are not read."""
    folder = Path(pattern)
    return list_folder(folder).hidden if folder.is_dir() else []


def _is_text(name: str) -> bool:
    return name.lower().endswith(TEXT_SUFFIXES)


def _matches(pattern: str) -> tuple[Path, list[str]]:
    """Return the root of a pattern, and by their names below it the files that a folder, a file or
    a glob names.

    A folder and a glob leave out hidden files, and a file may be hidden itself.
    """
    path = Path(pattern)
    if path.is_dir():
        _check_no_results(pattern, path)
        root, names = path, [str(file.relative_to(path)) for file in list_folder(path).files]
    elif path.exists():
        root, names = path.parent, [path.name]
    else:
        fixed = len(list(takewhile(lambda part: not has_magic(part), path.parts)))
        root = Path(*path.parts[:fixed])
        # pathlib would find hidden files, and pass over links to folders.
        names = glob(str(Path(*path.parts[fixed:])), root_dir=root, recursive=True)  # noqa: PTH207
        _check_no_results(pattern, *(root / name for name in names if RESULTS.name in name))
    return root, [name for name in names if (root / name).is_file() or not (root / name).exists()]


def _check_no_results(pattern: str, *places: Path) -> None:
    """Raise ``ValueError`` if a pattern of text names files that studies write, or would name them
    after a run; one that leads into the folder of results itself is meant."""
    results = RESULTS.resolve()
    if Path(pattern).resolve().is_relative_to(results):
        return
    for place in places:
        found = place.resolve()
        if found.is_relative_to(results) or results.is_relative_to(found):
            raise ValueError(
                f"paths.text: {pattern!r} would take what studies write in {results} for text; give"
                " a folder or a pattern that has only the text"
            )


def files_of_own_source(patterns: tuple[str, ...]) -> list[tuple[str, Path]]:
    """Return the files of any kind of folders, files and globs as sorted pairs (name within the
    pattern's root, path), for a source of the study's own; hidden ones are left out."""
    found = set()
    for pattern in patterns:
        root, names = _matches(pattern)
        found |= {(name, root / name) for name in names}
    return sorted(found)


def fingerprints(files: list[tuple[str, Path]]) -> list[list[Any]]:
    """Identify files by name, size, and first and last 64 KiB, which is fast for any size and
    ignores the path."""
    prints = []
    for name, path in files:
        with _readable("paths.text", path), path.open("rb") as file:
            size = path.stat().st_size
            head = file.read(_SAMPLE_BYTES)
            check_beginning(head, f"paths.text: {path}")
            file.seek(max(size - _SAMPLE_BYTES, 0))
            tail = file.read(_SAMPLE_BYTES)
        prints.append([name, size, digest([head.hex(), tail.hex()], 64)])
    return prints


def tokenizer_file(path: str) -> Path:
    """Return the ``tokenizer.json`` at ``path``, a file or its folder; raise ``ValueError`` if it
    does not exist."""
    file = Path(path)
    with _readable("paths.tokenizer", file):
        if file.is_dir():
            file = file / "tokenizer.json"
        if not file.is_file() or file.suffix.lower() != ".json":
            what = "is none" if file.is_file() else "does not exist"
            raise ValueError(f"paths.tokenizer: {file} {what}; give a tokenizer.json or its folder")
    return file


def tokenizer_identity(path: str) -> dict[str, str]:
    """Return what identifies the tokenizer at ``path``: the SHA-256 of its ``tokenizer.json``, and
    its end of text.

    The end-of-text token counts only where the ``tokenizer_config.json`` next to it names another
    token than ``tokenizer.json`` by itself would give.
    """
    file = tokenizer_file(path)
    with _readable("paths.tokenizer", file):
        identity = {"tokenizer_sha256": sha256_file(file)}
    eos = configured_eos(file)
    if eos is not None and eos not in special_ends(read_object(file))[:1]:
        identity["eos_token"] = eos
    return identity


def configured_eos(tokenizer: Path) -> str | None:
    """Return the ``eos_token`` of the configuration next to a ``tokenizer.json``, None if it names
    none."""
    file = tokenizer.with_name(TOKENIZER_CONFIG)
    eos = read_object(file).get("eos_token") if file.is_file() else None
    if isinstance(eos, dict):
        eos = eos.get("content", eos)
    if not isinstance(eos, str | None):
        raise ValueError(
            f"{file}: eos_token: must be text, or an object with the text as 'content', not {eos!r}"
        )
    return eos


def special_ends(tokenizer: dict[str, Any]) -> list[str]:
    """Return the common names of end-of-text that are special tokens of a ``tokenizer.json``."""
    added = tokenizer.get("added_tokens")
    special = (
        {token.get("content") for token in added if token.get("special")}
        if isinstance(added, list)
        else set()
    )
    return [name for name in EOT_NAMES if name in special]


def own_code(part: Any, place: str = "") -> Iterator[tuple[str, Own]]:
    """Yield the field and the entry of each class of its own that a study, or a part of one,
    names."""
    if isinstance(part, Own):
        yield place, part
    elif isinstance(part, BaseModel):
        for name, value in part:
            yield from own_code(value, f"{place}.{name}".removeprefix("."))
    elif isinstance(part, tuple):
        for index, value in enumerate(part):
            yield from own_code(value, f"{place}.{index}")


def with_code(study: Study) -> Study:
    """Return a study whose own classes have their code, that which is here; ``{}`` stands for code
    that is not here.

    Those of ``statistics`` have none, since they move no number of a run. ``ValueError`` if the
    study names other code.
    """
    complete: Study = _with_code(study)
    return complete.model_copy(update={"statistics": study.statistics})


def _with_code(part: Any, place: str = "") -> Any:
    if isinstance(part, Own):
        return _coded(part, place)
    if isinstance(part, tuple):
        values = tuple(_with_code(value, f"{place}.{index}") for index, value in enumerate(part))
        return part if all(map(operator.is_, values, part)) else values
    if not isinstance(part, BaseModel):
        return part
    changed = {}
    for name, value in part:
        coded = _with_code(value, f"{place}.{name}".removeprefix("."))
        if coded is not value:
            changed[name] = coded
    return part.model_copy(update=changed) if changed else part


def _coded(entry: Own, place: str) -> Own:
    try:
        here = code_of(entry.path)
    except ValueError:  # which stops whatever needs it: see plug_ins.py and training/checks.py
        here = {}
    changed = None
    if here and entry.code:
        changed = changed_code(entry.path, entry.code)
    if changed:
        raise ValueError(
            f"{place}.code: the study names other code of {entry.path} than is here ({changed});"
            " restore it, or leave out `code` to train with what is here"
        )
    return entry.model_copy(update={"code": entry.code or here})
