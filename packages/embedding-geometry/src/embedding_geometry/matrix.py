"""Everything that is measured of one embedding matrix: its geometry, that of parts of its rows, and
after changes.

V: rows    D: width
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedding_geometry.frequency import keep_rows, norm_frequency_curve, seen_rows
from embedding_geometry.isotropy import Isotropy, isotropy
from embedding_geometry.metrics import Geometry, embedding_geometry, lengths
from embedding_geometry.rows import ResultRow, row
from embedding_geometry.spectrum import (
    gram,
    principal_directions,
    remove_directions,
    subtract_mean,
    subtract_scaled_mean,
    top_directions,
)
from embedding_geometry.word_similarity import TokenPairs, r_bar_of

Matrix = NDArray[np.float64]

EMBEDDINGS = "embeddings"
"""The task of the input matrix."""
UNPADDED, SEEN = "_unpadded", "_seen"
"""Endings of the tasks without the rows beyond the tokenizer's, and of those of tokens that occur
in the text."""
CENTERED, SCALED, TOP, TOP_2 = (
    f"{EMBEDDINGS}_{name}" for name in ("centered", "norm_scaled", "abtt", "abtt2")
)
VARIANTS = (CENTERED, SCALED, TOP, TOP_2)
"""Tasks of the embedding matrix after post-processing."""


@dataclass(frozen=True)
class Measures:
    """The numbers of a matrix, the reasons for those that are NaN, and by its task its shape,
    spectrum and curve."""

    results: list[ResultRow]
    undefined: list[str]
    detail: dict[str, Any]


def matrix_geometry(
    task: str,
    matrix_VD: NDArray[np.float64],
    unigram_counts: NDArray[np.integer[Any]] | None,
    n_vocab: int | None,
    variant: Isotropy,
) -> Measures:
    """Return the metrics of a matrix under ``task``, and under ``task`` with its endings those of
    parts of its rows.

    ``n_vocab`` is the number of tokens of the tokenizer; the rows beyond are padding. What is not
    known, tokenizer or counts, leaves its part out. The spectrum and the norm-frequency curve are
    details. The matrix is overwritten, since a copy of the largest ones would need as much memory
    again.
    """
    n_vocab_known = len(matrix_VD) if n_vocab is None else n_vocab
    whole = embedding_geometry(matrix_VD, unigram_counts, variant)
    detail: dict[str, Any] = {
        "shape": list(matrix_VD.shape),
        "singular_values": whole.singular_values.tolist(),
    }
    found = {"": (len(matrix_VD), whole)}
    unpadded = whole
    if unigram_counts is not None:
        detail["norm_frequency"] = norm_frequency_curve(lengths(matrix_VD), unigram_counts)
        unigram_counts = unigram_counts[:n_vocab_known]
    # The rows beyond the vocabulary are padding and stand for no token.
    if n_vocab_known < len(matrix_VD):
        matrix_VD = matrix_VD[:n_vocab_known]
        unpadded = embedding_geometry(matrix_VD, unigram_counts, variant)
    if n_vocab is not None:
        found[UNPADDED] = (len(matrix_VD), unpadded)
    # The last part overwrites the matrix, so it comes after all others.
    if unigram_counts is not None:
        seen_V = seen_rows(unigram_counts, len(matrix_VD))
        seen = unpadded
        if not seen_V.all():
            seen_counts = unigram_counts[seen_V[: len(unigram_counts)]]
            seen = embedding_geometry(keep_rows(matrix_VD, seen_V), seen_counts, variant)
        found[SEEN] = (int(seen_V.sum()), seen)
    return _measures(task, found, detail)


def _measures(
    task: str, found: dict[str, tuple[int, Geometry]], detail: dict[str, Any]
) -> Measures:
    rows, reasons = [], []
    for ending, (n_rows, geometry) in found.items():
        rows += [row(task + ending, name, value) for name, value in geometry.metrics.items()]
        rows.append(row(task + ending, "n_rows", n_rows))
        undefined = [name for name, value in geometry.metrics.items() if math.isnan(value)]
        if undefined:
            reasons.append(
                f"{task + ending}: {', '.join(undefined)} not defined for this matrix and these"
                " counts"
            )
    return Measures(rows, reasons, {task: detail})


def variant_rows(
    read: Callable[[], Matrix], sets: Sequence[TokenPairs], variant: Isotropy
) -> list[ResultRow]:
    """Return isotropy and ``r_bar`` of a matrix after each post-processing; ``read`` gives the
    matrix anew."""

    def rows(task: str, changed_VD: Matrix, *known: Matrix) -> list[ResultRow]:
        value = isotropy(changed_VD, variant, *known)
        return [row(task, "isotropy", value), row(task, "r_bar", r_bar_of(changed_VD, sets))]

    matrix_VD = read()
    subtract_scaled_mean(matrix_VD, out=matrix_VD)
    found = {SCALED: rows(SCALED, matrix_VD)}
    del matrix_VD
    matrix_VD = read()
    width = matrix_VD.shape[1]
    subtract_mean(matrix_VD, out=matrix_VD)
    # Without its largest components, a matrix has the same directions.
    gram_DD = gram(matrix_VD)
    directions_DD = principal_directions(matrix_VD, gram_DD)
    found[CENTERED] = rows(CENTERED, matrix_VD, directions_DD, gram_DD)
    removed = {TOP: top_directions(width), TOP_2: min(2, width)}
    for task in sorted(removed, key=lambda task: removed[task]):
        remove_directions(matrix_VD, directions_DD[:, width - removed[task] :], out=matrix_VD)
        found[task] = rows(task, matrix_VD, directions_DD)
    return [each for task in VARIANTS for each in found[task]]
