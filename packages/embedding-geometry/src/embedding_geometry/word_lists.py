"""Reads lists of word pairs with human ratings of their similarity; it imports nothing heavy."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from embedding_geometry.user_files import check_no_pointer

_PART_OF_SPEECH = re.compile(r"-[a-z]$")
_NAME_LENGTH = 64


class Pair(NamedTuple):
    """Two words and how similar people find them, on the set's own scale."""

    word1: str
    word2: str
    rating: float


@dataclass(frozen=True)
class WordList:
    """A list of word pairs with human ratings, and where its file has them."""

    name: str
    file: str
    columns: tuple[int, int, int] = (0, 1, 2)
    """Columns of the first word, the second word and the rating, counted from 0."""
    strip_pos: bool = False
    """Whether to cut a part-of-speech suffix such as ``-n`` from the words."""


PAPER_LISTS = (
    WordList("men", "MEN_dataset_lemma_form_full", strip_pos=True),
    WordList("rw", "rw.txt"),
    WordList("simlex999", "SimLex-999.txt", columns=(0, 1, 3)),
    WordList("wordsim353-similarity", "wordsim_similarity_goldstandard.txt"),
    WordList("wordsim353-relatedness", "wordsim_relatedness_goldstandard.txt"),
)
"""The lists of the paper on Coupled Adam, with the names of their public files."""


def recognised_set(path: Path) -> WordList:
    """Return how a list of word pairs is to be read, from its lines, as its authors publish it.

    The words stand in the first two columns, and the rating in the first column of numbers behind
    them. Parts of speech such as ``-n`` are cut if each word has one. ``ValueError`` if the file is
    not there or not UTF-8.
    """
    rows = [line.split() for line in _lines(path, path.stem)]
    ratings = [place for row in rows for place in range(2, len(row)) if _is_number(row[place])]
    words = [word for row in rows if len(row) > 2 and not _is_header(row) for word in row[:2]]
    known = {paper.file: paper.name for paper in PAPER_LISTS}
    return WordList(
        name=known.get(path.name, _name_from(path.stem)),
        file=path.name,
        columns=(0, 1, ratings[0] if ratings else 2),
        strip_pos=bool(words) and all(_PART_OF_SPEECH.search(word) for word in words),
    )


def _name_from(stem: str) -> str:
    """Return a file's name without what the name of a set may not have."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", stem).strip("-.")[:_NAME_LENGTH] or "list"


def read_pairs(path: Path, spec: WordList) -> list[Pair]:
    """Read a set: one pair per line, columns separated by tabs or spaces; a header and empty lines
    are skipped.

    A header is a first line without any number. ``ValueError`` with file and line for a missing
    file, too few columns or a rating that is not a finite number.
    """
    lines = [
        (number, line) for number, line in enumerate(_lines(path, spec.name), 1) if line.strip()
    ]
    header = lines[0][1].split() if lines else []
    if len(header) > max(spec.columns) and _is_header(header):
        del lines[0]
    pairs = [_pair(line, f"{path}:{number}", spec) for number, line in lines]
    if not pairs:
        raise ValueError(f"word-similarity set {spec.name!r}: {path} has no pairs")
    return pairs


def _lines(path: Path, name: str) -> list[str]:
    """Return the lines of a set's file; ``ValueError`` with the set's name if there is none, or not
    of UTF-8."""
    try:
        check_no_pointer(path)
        return path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise ValueError(
            f"word-similarity set {name!r}: file {path} does not exist; put it there, or give"
            " another path"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", error)
        raise ValueError(
            f"word-similarity set {name!r}: file {path} cannot be read as UTF-8 ({reason}); give a"
            " text file"
        ) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_header(row: list[str]) -> bool:
    return not any(_is_number(text) for text in row)


def _pair(line: str, place: str, spec: WordList) -> Pair:
    fields = line.split()
    if len(fields) <= max(spec.columns):
        raise ValueError(
            f"{place}: {len(fields)} columns, {spec.name!r} needs {max(spec.columns) + 1}:"
            f" {line.strip()!r}"
        )
    word1, word2, rating = (fields[column] for column in spec.columns)
    value = float(rating) if _is_number(rating) else math.nan
    if not math.isfinite(value):
        raise ValueError(
            f"{place}: rating {rating!r} is not a number; correct the line, or the columns of the"
            f" set {spec.name!r}"
        )
    if spec.strip_pos:
        word1, word2 = (_PART_OF_SPEECH.sub("", word) for word in (word1, word2))
    return Pair(word1, word2, value)


@dataclass(frozen=True)
class WordLists:
    """Sets of word pairs by name, and what is missing of them."""

    sets: dict[str, list[Pair]]
    missing: list[str]
    are_given: bool = False
    """Whether the user has said which; else the list of the generated language is taken for a cell
    trained on it."""


def read_word_lists(path: Path | None, default: Path | None = None) -> WordLists:
    """Read a list, or the paper's lists in a folder; without a ``path`` those in ``default``.

    Lists that are not there are named in ``missing``. Without a path and a default there are none.
    ``ValueError`` for a path that does not exist, or a damaged list.
    """
    if path is not None and path.is_file():
        spec = recognised_set(path)
        return WordLists({spec.name: read_pairs(path, spec)}, [], are_given=True)
    folder = default if path is None else path
    if folder is None:
        return WordLists({}, ["word similarity: no lists of word pairs; give --word-similarity"])
    if path is not None and not path.is_dir():
        raise ValueError(
            f"--word-similarity: {path} does not exist; give a list or a folder with the paper's"
            " lists"
        )
    found = [spec for spec in PAPER_LISTS if (folder / spec.file).is_file()]
    there = {spec.name: read_pairs(folder / spec.file, spec) for spec in found}
    absent = ", ".join(spec.file for spec in PAPER_LISTS if spec.name not in there)
    missing = [f"word similarity: not in {folder}: {absent}"] if absent else []
    return WordLists(there, missing, are_given=path is not None)
