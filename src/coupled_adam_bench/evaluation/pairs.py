"""Reads word-similarity sets, which are files of word pairs with human ratings; it imports nothing heavy."""

import math
import re
from pathlib import Path
from typing import NamedTuple

from coupled_adam_bench.data.check import WORD_PAIRS
from coupled_adam_bench.study.config import Study, WordSimilaritySet
from coupled_adam_bench.study.config.base import NAME_LENGTH
from coupled_adam_bench.study.presets import PAPER_WORD_SIMILARITY

_PART_OF_SPEECH = re.compile(r"-[a-z]$")


class Pair(NamedTuple):
    """Two words and how similar people find them, on the set's own scale."""

    word1: str
    word2: str
    rating: float


def set_files(study: Study, data_folder: Path) -> list[tuple[WordSimilaritySet, Path]]:
    """Return the study's sets and their files; the set of the generated language lies beside the token bins."""
    if study.evaluation.word_similarity == "synthetic":
        return [(WordSimilaritySet(name="synthetic", file=WORD_PAIRS), data_folder / WORD_PAIRS)]
    return [(spec, Path(study.paths.word_similarity) / spec.file) for spec in study.evaluation.word_similarity]


def recognised_set(path: Path) -> WordSimilaritySet:
    """Return how a list of word pairs is to be read, from its lines, as its authors publish it.

    The words stand in the first two columns, and the rating in the first column of numbers behind them. Parts of speech
    such as ``-n`` are cut if each word has one. ``ValueError`` if the file is not there or not UTF-8.
    """
    rows = [line.split() for line in _lines(path, path.stem)]
    ratings = [place for row in rows for place in range(2, len(row)) if _is_number(row[place])]
    words = [word for row in rows if len(row) > 2 and not _is_header(row) for word in row[:2]]
    known = {fields["file"]: fields["name"] for fields in PAPER_WORD_SIMILARITY}
    return WordSimilaritySet(
        name=known.get(path.name, _name_from(path.stem)),
        file=path.name,
        columns=(0, 1, ratings[0] if ratings else 2),
        strip_pos=bool(words) and all(_PART_OF_SPEECH.search(word) for word in words),
    )


def _name_from(stem: str) -> str:
    """Return a file's name without what the name of a set may not have."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", stem).strip("-.")[:NAME_LENGTH] or "list"


def read_pairs(path: Path, spec: WordSimilaritySet) -> list[Pair]:
    """Read a set: one pair per line, columns separated by tabs or spaces; a header and empty lines are skipped.

    A header is a first line without any number. ``ValueError`` with file and line for a missing file, too few columns
    or a rating that is not a finite number.
    """
    lines = [(number, line) for number, line in enumerate(_lines(path, spec.name), 1) if line.strip()]
    if lines and len(header := lines[0][1].split()) > max(spec.columns) and _is_header(header):
        del lines[0]
    pairs = [_pair(line, f"{path}:{number}", spec) for number, line in lines]
    if not pairs:
        raise ValueError(f"word-similarity set {spec.name!r}: {path} has no pairs")
    return pairs


def _lines(path: Path, name: str) -> list[str]:
    """Return the lines of a set's file; ``ValueError`` with the set's name if there is none, or not of UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise ValueError(
            f"word-similarity set {name!r}: file {path} does not exist; put it there, set paths.word_similarity, "
            "or run the target `fetch`"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", error)
        raise ValueError(
            f"word-similarity set {name!r}: file {path} cannot be read as UTF-8 ({reason}); correct "
            "evaluation.word_similarity or paths.word_similarity"
        ) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_header(row: list[str]) -> bool:
    return not any(_is_number(text) for text in row)


def _pair(line: str, place: str, spec: WordSimilaritySet) -> Pair:
    fields = line.split()
    if len(fields) <= max(spec.columns):
        raise ValueError(
            f"{place}: {len(fields)} columns, {spec.name!r} needs {max(spec.columns) + 1}: {line.strip()!r}"
        )
    word1, word2, rating = (fields[column] for column in spec.columns)
    value = float(rating) if _is_number(rating) else math.nan
    if not math.isfinite(value):
        raise ValueError(
            f"{place}: rating {rating!r} is not a number; correct the line, or the columns of the set {spec.name!r} "
            "in evaluation.word_similarity"
        )
    if spec.strip_pos:
        word1, word2 = (_PART_OF_SPEECH.sub("", word) for word in (word1, word2))
    return Pair(word1, word2, value)
