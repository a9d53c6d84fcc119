"""Reads lists of word pairs with human ratings of their similarity; it imports nothing heavy."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from embedding_geometry.list_columns import column_in_words, number_of, recognised_columns, rows_of

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


def recognised_set(
    path: Path, name: str | None = None, columns: tuple[int, int, int] | None = None
) -> WordList:
    """Return how a list of word pairs is to be read, from its lines, as its authors publish it.

    ``name`` is that of the set, by default that of its file. A paper's list is known by its file.
    ``columns`` are those of the words and the rating, by default the ones that are found.
    In any other the words stand in the columns that are so named, or in the first two that are
    neither numbers nor parts of speech. The rating stands in the only column of numbers behind the
    first word, in the one with "mean" in its name, in the only one that is named like a rating, or
    in the one that is the mean of all columns of numbers behind it. Parts of speech such as ``-n``
    are cut if each word has one. ``ValueError`` if several columns could be the rating, or none,
    and if the file is not there or not UTF-8.
    """
    known = {paper.file: paper for paper in PAPER_LISTS}
    rows = rows_of(path, name or path.stem)
    if path.name in known:
        return known[path.name]
    columns = columns or recognised_columns(rows, path)
    whole = [row for _, row in rows.body(columns[2]) if len(row) > max(columns)]
    words = [row[column] for row in whole for column in columns[:2]]
    return WordList(
        name=name or _name_from(path.stem),
        file=path.name,
        columns=columns,
        strip_pos=bool(words) and all(_PART_OF_SPEECH.search(word) for word in words),
    )


def _name_from(stem: str) -> str:
    """Return a file's name without what the name of a set may not have."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", stem).strip("-.")[:_NAME_LENGTH] or "list"


def read_pairs(path: Path, spec: WordList) -> list[Pair]:
    """Read a set: one pair per line, columns separated by tabs, semicolons, commas or spaces.

    A header, which is a first line with a name in the column of the rating, is left out, and so are
    empty lines and comments. ``ValueError`` with file and line for a missing file, too few columns,
    a missing word or a rating that is not a finite number.
    """
    body = rows_of(path, spec.name).body(spec.columns[2])
    pairs = [_pair(row, f"{path}:{number}", spec) for number, row in body]
    if not pairs:
        raise ValueError(f"word-similarity set {spec.name!r}: {path} has no pairs")
    return pairs


def describe_list(path: Path, spec: WordList) -> str:
    """Return in words what was read of a set: its first pair, and where the rating stands.

    An example is ``wordsim: 353 pairs, first love and sex with 6.77, from column 3 ('mean')``.
    """
    pairs = read_pairs(path, spec)
    rating = spec.columns[2]
    names = rows_of(path, spec.name).names(rating)
    name = names[rating] if rating < len(names) else None
    first = pairs[0]
    return (
        f"{spec.name}: {len(pairs):,} {'pair' if len(pairs) == 1 else 'pairs'}, first"
        f" {first.word1} and {first.word2} with {first.rating:g}, from"
        f" {column_in_words(rating, name)}"
    )


def _pair(fields: list[str], place: str, spec: WordList) -> Pair:
    if len(fields) <= max(spec.columns):
        raise ValueError(
            f"{place}: {len(fields)} columns, {spec.name!r} needs {max(spec.columns) + 1}:"
            f" {' '.join(fields)!r}; correct the line, whose columns tabs, semicolons, commas or"
            " spaces separate"
        )
    word1, word2, rating = (fields[column] for column in spec.columns)
    value = number_of(rating)
    if value is None or not math.isfinite(value):
        raise ValueError(
            f"{place}: rating {rating!r} is not a number; correct the line, or the columns of the"
            f" set {spec.name!r}"
        )
    if not (word1 and word2):
        raise ValueError(f"{place}: a word is missing; correct the line, or leave it out")
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
    read: list[str] = field(default_factory=list)
    """What was read of each set, in words: its first pair, and where the rating stands."""


def read_word_lists(path: Path | None, default: Path | None = None) -> WordLists:
    """Read a list, or the paper's lists in a folder; without a ``path`` those in ``default``.

    Lists that are not there are named in ``missing``. Without a path and a default there are none.
    ``ValueError`` for a path that does not exist, or a damaged list.
    """
    if path is not None and path.is_file():
        spec = recognised_set(path)
        pairs = {spec.name: read_pairs(path, spec)}
        return WordLists(pairs, [], are_given=True, read=[describe_list(path, spec)])
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
    read = [describe_list(folder / spec.file, spec) for spec in found]
    return WordLists(there, missing, are_given=path is not None, read=read)
