"""Reads word-similarity sets, which are files of word pairs with human ratings; it imports nothing heavy."""

import math
import re
from pathlib import Path
from typing import NamedTuple

from coupled_adam_bench.data.check import WORD_PAIRS
from coupled_adam_bench.study.config import Study, WordSimilaritySet


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


def read_pairs(path: Path, spec: WordSimilaritySet) -> list[Pair]:
    """Read a set: one pair per line, columns separated by tabs or spaces, no header; empty lines are skipped.

    ``ValueError`` with file and line for a missing file, too few columns or a rating that is not a finite number.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise ValueError(
            f"word-similarity set {spec.name!r}: file {path} does not exist; put it there, set paths.word_similarity, "
            "or run the target `fetch`"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", error)
        raise ValueError(
            f"word-similarity set {spec.name!r}: file {path} cannot be read as UTF-8 ({reason}); correct "
            "evaluation.word_similarity or paths.word_similarity"
        ) from None
    pairs = [_pair(line, f"{path}:{number}", spec) for number, line in enumerate(lines, 1) if line.strip()]
    if not pairs:
        raise ValueError(f"word-similarity set {spec.name!r}: {path} has no pairs")
    return pairs


def _pair(line: str, place: str, spec: WordSimilaritySet) -> Pair:
    fields = line.split()
    if len(fields) <= max(spec.columns):
        raise ValueError(
            f"{place}: {len(fields)} columns, {spec.name!r} needs {max(spec.columns) + 1}: {line.strip()!r}"
        )
    word1, word2, rating = (fields[column] for column in spec.columns)
    try:
        value = float(rating)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(
            f"{place}: rating {rating!r} is not a number; delete a header line, or check {spec.name}.columns"
        )
    if spec.strip_pos:
        word1, word2 = (re.sub(r"-[a-z]$", "", word) for word in (word1, word2))
    return Pair(word1, word2, value)
