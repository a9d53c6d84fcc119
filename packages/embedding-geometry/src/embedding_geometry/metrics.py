"""Metrics of an embedding matrix: isotropy, norms, spectrum and their relation to token frequency.

V: rows, one per token of the vocabulary, including tokens that never occur    D: width of the model
K: directions
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedding_geometry.correlation import pearson
from embedding_geometry.isotropy import (
    Isotropy,
    isotropy,
    isotropy_centered,
    isotropy_centered_common_length,
    isotropy_common_length,
    isotropy_trimmed,
)
from embedding_geometry.spectrum import (
    centered_gram,
    effective_rank,
    gram,
    kappa,
    participation_ratio,
    principal_components,
    principal_directions,
)

Array = NDArray[np.float64]

LOG_PROBABILITY_OFFSET = 1e-10
"""Offset that keeps log(p) finite for tokens that never occur [C]."""


@dataclass(frozen=True)
class Geometry:
    """The metrics of a matrix by name, and its singular values, descending."""

    metrics: dict[str, float]
    singular_values: Array


def embedding_geometry(
    embeddings_VD: Array, unigram_counts: NDArray[np.integer] | None, variant: Isotropy
) -> Geometry:
    """Return all :data:`METRICS` of a matrix, and its spectrum.

    The function of a metric is given what its parameters name. ``unigram_counts`` are the
    occurrences of each token in the training text; rows beyond them count as never seen. Without
    them, the metrics that need them are left out. ``variant`` selects the isotropy. A NaN in the
    matrix makes all metrics NaN.
    """
    gram_DD = gram(embeddings_VD)
    singular_values_K, directions_DD = principal_components(embeddings_VD, gram_DD)
    centered_gram_DD = centered_gram(embeddings_VD)
    known: dict[str, Any] = {
        "embeddings_VD": embeddings_VD,
        "variant": variant,
        "directions_DD": directions_DD,
        "gram_DD": gram_DD,
        "singular_values_K": singular_values_K,
        "centered_gram_DD": centered_gram_DD,
        "centered_directions_DD": principal_directions(embeddings_VD, centered_gram_DD),
    }
    if unigram_counts is not None:
        known["unigram_counts"] = unigram_counts
        known["log_probability_V"] = log_unigram_probability(unigram_counts, len(embeddings_VD))
    values = {}
    # A metric is left out where something that it needs, such as the counts, is not known.
    for name, function in METRICS.items():
        needs = signature(function).parameters.keys()
        if needs <= known.keys():
            values[name] = function(**{parameter: known[parameter] for parameter in needs})
    return Geometry(values, singular_values_K)


def embedding_metrics(
    embeddings_VD: Array, unigram_counts: NDArray[np.integer] | None, variant: Isotropy
) -> dict[str, float]:
    """Return the metrics of a matrix by name; see ``embedding_geometry``."""
    return embedding_geometry(embeddings_VD, unigram_counts, variant).metrics


def mean_norm(embeddings_VD: Array) -> float:
    """Return the 2-norm of the mean embedding."""
    return float(np.linalg.norm(embeddings_VD.mean(axis=0)))


def mean_length(embeddings_VD: Array) -> float:
    """Return the mean of the embeddings' 2-norms."""
    return float(lengths(embeddings_VD).mean())


def mean_norm_ratio(embeddings_VD: Array) -> float:
    """Return the norm of the mean embedding over the mean norm, in [0, 1]; NaN if all embeddings
    are zero."""
    length = mean_length(embeddings_VD)
    return mean_norm(embeddings_VD) / length if length > 0 else math.nan


def mean_cosine(embeddings_VD: Array) -> float:
    """Return the mean cosine of all pairs of different rows, in [-1, 1]: 1 if all point the same
    way.

    Rows of zeros have no direction and are left out; it is NaN if fewer than two rows are left.
    """
    lengths_V = lengths(embeddings_VD)
    inverse_V = np.divide(1.0, lengths_V, out=np.zeros_like(lengths_V), where=lengths_V != 0)
    n_rows = int(np.count_nonzero(inverse_V))
    if n_rows < 2:
        return math.nan
    sum_D = inverse_V @ embeddings_VD
    return float((sum_D @ sum_D - n_rows) / (n_rows * (n_rows - 1.0)))


def rho(embeddings_VD: Array, log_probability_V: Array) -> float:
    """Return Pearson's correlation of the embeddings' norms with their log unigram
    probabilities."""
    return pearson(lengths(embeddings_VD), log_probability_V)


def mean_projection_correlation(embeddings_VD: Array, log_probability_V: Array) -> float:
    """Return Pearson's correlation of e_i . mu with the log unigram probabilities; mu is the mean
    embedding."""
    return pearson(embeddings_VD @ embeddings_VD.mean(axis=0), log_probability_V)


def log_unigram_probability(unigram_counts: NDArray[np.integer], n_rows: int) -> Array:
    """Return the natural logarithm of p + 1e-10 for ``n_rows`` tokens; rows beyond the counts have
    p = 0."""
    counts = np.asarray(unigram_counts, dtype=np.float64)
    if counts.ndim != 1 or len(counts) > n_rows or not np.all(counts >= 0) or counts.sum() == 0:
        raise ValueError(
            f"unigram_counts: shape {counts.shape}, sum {counts.sum():g}; give at most {n_rows}"
            " counts (the rows of the embedding matrix), none negative and not all zero"
        )
    probability_V = np.zeros(n_rows)
    probability_V[: len(counts)] = counts / counts.sum()
    return np.log(probability_V + LOG_PROBABILITY_OFFSET)


def lengths(embeddings_VD: Array) -> Array:
    """Return the 2-norms of the rows (V,)."""
    lengths_V: Array = np.sqrt(np.einsum("vd,vd->v", embeddings_VD, embeddings_VD))
    return lengths_V


_FUNCTIONS: tuple[Callable[..., float], ...] = (
    isotropy,
    isotropy_trimmed,
    isotropy_centered,
    isotropy_common_length,
    isotropy_centered_common_length,
    mean_norm,
    mean_norm_ratio,
    mean_length,
    rho,
    mean_projection_correlation,
    kappa,
    mean_cosine,
    effective_rank,
    participation_ratio,
)
METRICS = {function.__name__: function for function in _FUNCTIONS}
"""All metrics of a matrix by their names, in the order in which they are shown."""
