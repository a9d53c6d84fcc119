"""Reads lists of word pairs with human ratings of their similarity; it imports nothing heavy."""

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from embedding_geometry.user_files import check_no_pointer

_PART_OF_SPEECH = re.compile(r"-[a-z]$")
_NAME_LENGTH = 64
_SEPARATORS = ("\t", ";", ",")
"""What separates the columns of a list, if each of its lines has it; else spaces and tabs do."""
_TAGS = frozenset({"a", "adj", "adv", "n", "noun", "r", "s", "v", "verb"})
"""What a column of parts of speech has, in small letters."""
_COMMENT = re.compile(r"#+(\s|$)")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_WORD_NAME = re.compile(r"word\W*[12ab]\W*", re.IGNORECASE)
_MEAN_NAME = re.compile(r"mean|average|\bavg", re.IGNORECASE)
_RATING_NAME = re.compile(r"rating|score|simil|related|simlex|simverb|human|gold", re.IGNORECASE)
_SPREAD_NAME = re.compile(r"^\W*(sd|std|stdev|stderr|var|n|num|count)(\b|_)|count", re.IGNORECASE)


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


@dataclass(frozen=True)
class _Rows:
    """The lines of a list, cut into columns."""

    lines: list[tuple[int, list[str]]]
    """The number of each line in its file, from 1, and its columns."""
    comment: list[str]
    """The columns of the last comment above the first line; empty if it does not name each."""

    def body(self, rating: int) -> list[tuple[int, list[str]]]:
        """Return the lines without the header: a first one that has no number in the column
        ``rating``."""
        return self.lines[1:] if self._has_header(rating) else self.lines

    def names(self, rating: int) -> list[str]:
        """Return the names of the columns: those of the header, or of the comment above a list
        without one."""
        return self.lines[0][1] if self._has_header(rating) else self.comment

    def _has_header(self, rating: int) -> bool:
        first = self.lines[0][1] if self.lines else []
        if len(_word_columns(first)) == 2:
            return True
        return len(first) > rating and _number(first[rating]) is None


def _word_columns(names: Sequence[str]) -> list[int]:
    """Return the columns that are named like the first and the second word."""
    return [column for column, name in enumerate(names) if _WORD_NAME.fullmatch(name)]


def _rows_of(path: Path, name: str) -> _Rows:
    """Return the rows of a list, whose columns are separated by tabs, semicolons, commas or spaces.

    Empty lines are left out, and the lines with a ``#`` above the first pair, which are comments.
    """
    lines = [(number, line) for number, line in enumerate(_lines(path, name), 1) if line.strip()]
    comment = ""
    while lines and _COMMENT.match(lines[0][1]):
        comment = lines.pop(0)[1].lstrip("# ")
    separator = None
    for mark in reversed(_SEPARATORS):
        if lines and all(line.count(mark) > 1 for _, line in lines):
            separator = mark
    cut = [(number, _columns(line, separator)) for number, line in lines]
    names = _columns(comment, separator)
    return _Rows(cut, names if cut and len(names) == len(cut[0][1]) else [])


def _columns(line: str, separator: str | None) -> list[str]:
    if separator in (";", ","):  # a column with a separator in it stands in quotes
        return [text.strip() for text in next(csv.reader([line], delimiter=separator))]
    return [text.strip() for text in line.split(separator)]


def recognised_set(path: Path, name: str | None = None) -> WordList:
    """Return how a list of word pairs is to be read, from its lines, as its authors publish it.

    ``name`` is that of the set, by default that of its file. A paper's list is known by its file.
    In any other the words stand in the columns that are so named, or in the first two that are
    neither numbers nor parts of speech. The rating stands in the only column of numbers behind the
    first word, in the one with "mean" in its name, or in the only one that is named like a rating.
    Parts of speech such as ``-n`` are cut if each word has one. ``ValueError`` if several columns
    could be the rating, and if the file is not there or not UTF-8.
    """
    known = {paper.file: paper for paper in PAPER_LISTS}
    rows = _rows_of(path, name or path.stem)
    if path.name in known:
        return known[path.name]
    columns = _recognised_columns(rows, path)
    whole = [row for _, row in rows.body(columns[2]) if len(row) > max(columns)]
    words = [row[column] for row in whole for column in columns[:2]]
    return WordList(
        name=name or _name_from(path.stem),
        file=path.name,
        columns=columns,
        strip_pos=bool(words) and all(_PART_OF_SPEECH.search(word) for word in words),
    )


def _recognised_columns(rows: _Rows, path: Path) -> tuple[int, int, int]:
    """Return the columns of both words and of the rating; (0, 1, 2) for a list without numbers,
    whose reading says what is wrong."""
    below = [row for _, row in rows.lines[1:] or rows.lines]
    width = max(map(len, below), default=0)
    cells = []
    for column in range(width):
        cells.append([row[column] for row in below if len(row) > column])
    numbers = [column for column in range(width) if _is_mostly_numbers(cells[column])]
    names = next((rows.names(column) for column in numbers if rows.names(column)), rows.comment)
    words = _word_columns(names)
    if len(words) != 2:
        others = [column for column in range(width) if column not in numbers]
        words = [column for column in others if not _is_tags(cells[column])][:2]
    numbers = [column for column in numbers if words and column > words[0]]
    if len(words) < 2 or not numbers:
        return 0, 1, 2
    named = {column: names[column] for column in numbers if column < len(names)}
    rating = _rating_column(numbers, named)
    if rating is None:
        shown = [_column_in_words(column, named.get(column)) for column in numbers[:4]]
        more = f" or one of {len(numbers) - 4} others" if len(numbers) > 4 else ""
        raise ValueError(
            f"{path}: the rating of a pair could be in {' or '.join(shown)}{more}; give the list a"
            " first line with the names of its columns, such as word1 and word2, and name the"
            " rating's 'mean', or leave one column of numbers in it"
        )
    return words[0], words[1], rating


def _rating_column(numbers: Sequence[int], named: dict[int, str]) -> int | None:
    """Return the only column of numbers that can be the rating, None if several can."""
    if len(numbers) == 1:
        return numbers[0]
    for pattern in (_MEAN_NAME, _RATING_NAME):
        fitting = [column for column, name in named.items() if pattern.search(name)]
        fitting = [column for column in fitting if not _SPREAD_NAME.search(named[column])]
        if fitting:
            return fitting[0] if len(fitting) == 1 else None
    return None


def _is_mostly_numbers(cells: Sequence[str]) -> bool:
    return 2 * sum(_number(text) is not None for text in cells) > len(cells)


def _is_tags(cells: Sequence[str]) -> bool:
    return all(text.lower() in _TAGS for text in cells)


def _column_in_words(column: int, name: str | None) -> str:
    """Return a column as people count it, from 1, and its name."""
    return f"column {column + 1}" + (f" ({name!r})" if name else "")


def _name_from(stem: str) -> str:
    """Return a file's name without what the name of a set may not have."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", stem).strip("-.")[:_NAME_LENGTH] or "list"


def read_pairs(path: Path, spec: WordList) -> list[Pair]:
    """Read a set: one pair per line, columns separated by tabs, semicolons, commas or spaces.

    A header, which is a first line without a number in the column of the rating, is left out, and
    so are empty lines and comments above the pairs. ``ValueError`` with file and line for a missing
    file, too few columns or a rating that is not a finite number.
    """
    body = _rows_of(path, spec.name).body(spec.columns[2])
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
    names = _rows_of(path, spec.name).names(rating)
    name = names[rating] if rating < len(names) else None
    first = pairs[0]
    return (
        f"{spec.name}: {len(pairs):,} {'pair' if len(pairs) == 1 else 'pairs'}, first"
        f" {first.word1} and {first.word2} with {first.rating:g}, from"
        f" {_column_in_words(rating, name)}"
    )


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


def _number(text: str) -> float | None:
    """Return the number that a text is, with a point or a comma before its decimals; else None."""
    try:
        return float(text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) else text)
    except ValueError:
        return None


def _pair(fields: list[str], place: str, spec: WordList) -> Pair:
    if len(fields) <= max(spec.columns):
        raise ValueError(
            f"{place}: {len(fields)} columns, {spec.name!r} needs {max(spec.columns) + 1}:"
            f" {' '.join(fields)!r}"
        )
    word1, word2, rating = (fields[column] for column in spec.columns)
    value = _number(rating)
    if value is None or not math.isfinite(value):
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
