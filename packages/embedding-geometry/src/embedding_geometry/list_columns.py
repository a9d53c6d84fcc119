"""Finds the columns of the words and of the rating in a list of word pairs; it imports nothing
heavy."""

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from embedding_geometry.user_files import check_no_pointer

_SEPARATORS = {"\t": "a tab", ";": "a semicolon", ",": "a comma"}
"""What separates the columns of a list, if each of its lines has it; else spaces and tabs do."""
_TAGS = frozenset({
    "a", "adj", "adp", "adv", "aux", "cconj", "det", "intj", "n", "noun", "num", "part", "pron",
    "propn", "punct", "r", "s", "sconj", "sym", "v", "verb", "x",
    "jj", "jjr", "jjs", "nn", "nns", "nnp", "nnps", "rb", "rbr", "rbs", "vb", "vbd", "vbg", "vbn",
    "vbp", "vbz",
})  # fmt: skip
"""What a column of parts of speech has, in small letters: WordNet's, Universal Dependencies' and
the Penn Treebank's."""
_COMMENT = re.compile(r"#+(\s|$)")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_MISSING = frozenset({"na", "n/a", "null", "none"})
_WORD_NAME = re.compile(r"word\W*[12ab]\W*", re.IGNORECASE)
_MEAN_NAME = re.compile(r"mean|average|\bavg", re.IGNORECASE)
_RATING_NAME = re.compile(r"rating|score|simil|related|simlex|simverb|human|gold", re.IGNORECASE)
_SPREAD_NAME = re.compile(r"^\W*(sd|std|stdev|stderr|var|n|num|count)(\b|_)|count", re.IGNORECASE)
_ROUNDING = 0.051
"""How far a mean of ratings, which may be rounded to one decimal, may be from theirs."""


@dataclass(frozen=True)
class Rows:
    """The lines of a list, cut into columns."""

    lines: list[tuple[int, list[str]]]
    """The number of each line in its file, from 1, and its columns."""
    comment: list[str]
    """The columns of the last comment above the first line; empty if it does not name each."""

    def body(self, rating: int) -> list[tuple[int, list[str]]]:
        """Return the lines without the header: a first one that has a name in the column
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
        return len(first) > rating and _is_name(first[rating])


def _is_name(text: str) -> bool:
    """Tell whether a text can be the name of a column, and is no number or sign for a missing
    one."""
    has_letter = any(letter.isalpha() for letter in text)
    return has_letter and number_of(text) is None and text.lower() not in _MISSING


def _word_columns(names: Sequence[str]) -> list[int]:
    """Return the columns that are named like the first and the second word."""
    return [column for column, name in enumerate(names) if _WORD_NAME.fullmatch(name)]


def rows_of(path: Path, name: str) -> Rows:
    """Return the rows of a list, whose columns are separated by tabs, semicolons, commas or spaces.

    Empty lines and comments, which begin with ``#`` and a space, are left out.
    """
    lines = [(number, line) for number, line in enumerate(_lines(path, name), 1) if line.strip()]
    comment = ""
    while lines and _COMMENT.match(lines[0][1]):
        comment = lines.pop(0)[1].lstrip("# ")
    lines = [(number, line) for number, line in lines if not line.startswith("# ")]
    separator = _separator([line for _, line in lines])
    if separator is None:
        _check_first_line(path, lines)
    cut = [(number, _columns(line, separator)) for number, line in lines]
    if _lacks_name_of_numbers([columns for _, columns in cut]):
        cut[0][1].insert(0, "")
    names = _columns(comment, separator)
    return Rows(cut, names if cut and len(names) == len(cut[0][1]) else [])


def _separator(lines: Sequence[str]) -> str | None:
    """Return what separates the columns of all lines, None for spaces and tabs."""
    for mark in _SEPARATORS:
        if lines and all(line.count(mark) > 1 for line in lines):
            return mark
    return None


def _check_first_line(path: Path, lines: Sequence[tuple[int, str]]) -> None:
    """Raise ``ValueError`` for a first line with other separators than those below it, if spaces
    would separate the words of a phrase there."""
    below = [line for _, line in lines[1:]]
    mark = _separator(below)
    if mark is None:
        return
    if any(len(_columns(line, mark)) != len(_columns(line, None)) for line in below):
        raise ValueError(
            f"{path}:{lines[0][0]}: {_SEPARATORS[mark]} separates the columns of all other lines,"
            " but not those of this one; write it in this way too, or leave it out"
        )


def _lacks_name_of_numbers(rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether the first row names all columns but the first one, which numbers the others, as
    R's ``write.table`` writes a list."""
    if len(rows) < 2 or any(number_of(name) is not None for name in rows[0]):
        return False
    width = len(rows[0]) + 1
    return all(len(row) == width and row[0].isdecimal() for row in rows[1:])


def _columns(line: str, separator: str | None) -> list[str]:
    if separator in (";", ","):  # a column with a separator in it stands in quotes
        return [text.strip() for text in next(csv.reader([line], delimiter=separator))]
    return [_unquoted(text.strip()) for text in line.split(separator)]


def _unquoted(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] == '"'
    return text[1:-1].strip() if is_quoted else text


def recognised_columns(rows: Rows, path: Path) -> tuple[int, int, int]:
    """Return the columns of both words and of the rating; (0, 1, 2) for a list without numbers,
    whose reading says what is wrong.

    ``ValueError`` if several columns could be the rating, or none.
    """
    below = [row for _, row in rows.lines[1:] or rows.lines]
    width = max(map(len, below), default=0)
    cells = []
    for column in range(width):
        cells.append([row[column] for row in below if len(row) > column])
    numbers = [column for column in range(width) if _is_mostly_numbers(cells[column])]
    names = next((rows.names(column) for column in numbers if rows.names(column)), rows.comment)
    words = _word_columns(names)
    if len(words) != 2:
        words = _columns_of_words(cells, numbers)
    if len(words) < 2 or not numbers:
        return 0, 1, 2
    named = {column: names[column] for column in numbers if column < len(names)}
    if len(names) < width and set(words) & set(numbers):
        raise ValueError(
            f"{path}: the first line has names for {len(names)} of {width} columns, and with them"
            " numbers would be words; give each column a name, one that you do not need, too"
        )
    return words[0], words[1], _rating_column(path, words[0], cells, numbers, named)


def _columns_of_words(cells: Sequence[Sequence[str]], numbers: Sequence[int]) -> list[int]:
    """Return the first two columns of text that can be words; those of parts of speech cannot."""
    texts = [column for column in range(len(cells)) if column not in numbers]
    words = [column for column in texts if not _is_tags(cells[column])]
    # A column that says the same in each line, such as a language, tells no pairs apart.
    differing = [column for column in words if len(set(cells[column])) > 1]
    return (differing if len(differing) > 1 else words)[:2]


def _rating_column(
    path: Path,
    word: int,
    cells: Sequence[Sequence[str]],
    numbers: Sequence[int],
    named: dict[int, str],
) -> int:
    """Return the only column of numbers that can be the rating of a pair whose first word stands in
    the column ``word``; ``ValueError`` if there is none, or several.

    Numbers before the words may count the lines, and are the rating only if their name says so.
    """
    behind = [column for column in numbers if column > word]
    if len(behind) == 1:
        return behind[0]
    names = {column: name for column, name in named.items() if column in behind or not behind}
    for pattern in (_MEAN_NAME, _RATING_NAME):
        fitting = [column for column, name in names.items() if pattern.search(name)]
        fitting = [column for column in fitting if not _SPREAD_NAME.search(names[column])]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            break
    else:
        for column in behind[:-2]:
            if _is_mean([cells[other] for other in behind if other >= column]):
                return column
    cure = (
        f"give the list a first line with a name for each of its {len(cells)} columns, written with"
        " the same separators, such as word1 and word2 for the words, and name the rating's 'mean'"
    )
    if not behind:
        raise ValueError(f"{path}: no column of numbers stands behind the words; {cure}")
    shown = [column_in_words(column, named.get(column)) for column in behind[:4]]
    more = f" or one of {len(behind) - 4} others" if len(behind) > 4 else ""
    raise ValueError(
        f"{path}: the rating of a pair could be in {' or '.join(shown)}{more}; {cure}, or leave one"
        " column of numbers in it"
    )


def _is_mean(columns: Sequence[Sequence[str]]) -> bool:
    """Tell whether the first column is in each line the mean of the others, which are the ratings
    of single people."""
    for first, *others in zip(*columns, strict=False):
        mean, ratings = number_of(first), [number_of(text) for text in others]
        known = [rating for rating in ratings if rating is not None]
        if mean is None or not known:
            return False
        if not abs(mean - math.fsum(known) / len(known)) <= _ROUNDING:
            return False
    return True


def _is_mostly_numbers(cells: Sequence[str]) -> bool:
    return 2 * sum(number_of(text) is not None for text in cells) > len(cells)


def _is_tags(cells: Sequence[str]) -> bool:
    return all(text.lower() in _TAGS for text in cells)


def column_in_words(column: int, name: str | None) -> str:
    """Return a column as people count it, from 1, and its name."""
    return f"column {column + 1}" + (f" ({name!r})" if name else "")


def number_of(text: str) -> float | None:
    """Return the number that a text is, with a point or a comma before its decimals; else None."""
    if "_" in text:  # which Python reads over in numbers
        return None
    try:
        return float(text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) else text)
    except ValueError:
        return None


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
