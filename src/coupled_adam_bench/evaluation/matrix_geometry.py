"""The geometry of one matrix with a row for each token: all rows, those of the tokenizer, and those of seen tokens."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.embeddings.frequency import keep_rows, norm_frequency_curve, seen_rows
from coupled_adam_bench.embeddings.isotropy import Isotropy
from coupled_adam_bench.embeddings.metrics import Geometry, embedding_geometry, lengths
from coupled_adam_bench.store.record import Evaluation, row

UNPADDED, SEEN = "_unpadded", "_seen"
"""Endings of the tasks without the rows beyond the tokenizer's, and of those of tokens that occur in the text."""


def matrix_geometry(
    task: str,
    matrix_VD: NDArray[np.float64],
    unigram_counts: NDArray[np.integer[Any]] | None,
    n_vocab: int | None,
    variant: Isotropy,
) -> Evaluation:
    """Return the metrics of a matrix under ``task``, and under ``task`` with its endings those of parts of its rows.

    ``n_vocab`` is the number of tokens of the tokenizer; the rows beyond are padding. What is not known, tokenizer or
    counts, leaves its part out. The spectrum and the norm-frequency curve are details. The matrix is overwritten, since
    a copy of the largest ones would need as much memory again.
    """
    n_vocab_known = len(matrix_VD) if n_vocab is None else n_vocab
    whole = embedding_geometry(matrix_VD, unigram_counts, variant)
    detail: dict[str, Any] = {"shape": list(matrix_VD.shape), "singular_values": whole.singular_values.tolist()}
    found = {"": (len(matrix_VD), whole)}
    unpadded = whole
    if unigram_counts is not None:
        detail["norm_frequency"] = norm_frequency_curve(lengths(matrix_VD), unigram_counts)
        unigram_counts = unigram_counts[:n_vocab_known]
    if n_vocab_known < len(matrix_VD):
        matrix_VD = matrix_VD[:n_vocab_known]
        unpadded = embedding_geometry(matrix_VD, unigram_counts, variant)
    if n_vocab is not None:
        found[UNPADDED] = (len(matrix_VD), unpadded)
    if unigram_counts is not None:
        seen_V = seen_rows(unigram_counts, len(matrix_VD))
        seen = unpadded
        if not seen_V.all():
            seen_counts = unigram_counts[seen_V[: len(unigram_counts)]]
            seen = embedding_geometry(keep_rows(matrix_VD, seen_V), seen_counts, variant)
        found[SEEN] = (int(seen_V.sum()), seen)
    return _evaluation(task, found, detail)


def _evaluation(task: str, found: dict[str, tuple[int, Geometry]], detail: dict[str, Any]) -> Evaluation:
    rows, reasons = [], []
    for ending, (n_rows, geometry) in found.items():
        rows += [row(task + ending, name, value) for name, value in geometry.metrics.items()]
        rows.append(row(task + ending, "n_rows", n_rows))
        undefined = [name for name, value in geometry.metrics.items() if math.isnan(value)]
        if undefined:
            reasons.append(f"{task + ending}: {', '.join(undefined)} not defined for this matrix and these counts")
    return Evaluation(rows, reasons, {task: detail})
