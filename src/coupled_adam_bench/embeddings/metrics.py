"""Metrics of an embedding matrix: isotropy, norms, spectrum and their relation to token frequency.

V: rows, one per token of the vocabulary, including tokens that never occur    D: width of the model    K: directions
"""

import math
from inspect import signature
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.catalog.metrics import METRICS
from coupled_adam_bench.embeddings.correlation import pearson

Array = NDArray[np.float64]
Isotropy = Literal["both_signs", "eig_float32"]

LOG_PROBABILITY_OFFSET = 1e-10
"""Offset that keeps log(p) finite for tokens that never occur [C]."""
_COLUMNS = 64  # directions per block: bounds the extra memory to a few V x 64 arrays


def embedding_metrics(embeddings_VD: Array, unigram_counts: NDArray[np.integer], variant: Isotropy) -> dict[str, float]:
    """Return by name all metrics of a matrix that the catalogue declares for the task ``embeddings``.

    Each is the function of its name in this module, which is given what its parameters name. ``unigram_counts`` are
    the occurrences of each token in the training text; rows beyond them count as never seen. ``variant`` selects the
    isotropy. A NaN anywhere in the matrix makes all metrics NaN.
    """
    known = {
        "embeddings_VD": embeddings_VD,
        "unigram_counts": unigram_counts,
        "variant": variant,
        "log_probability_V": log_unigram_probability(unigram_counts, len(embeddings_VD)),
        "directions_DD": principal_directions(embeddings_VD),
    }
    values = {}
    for name in [metric.name for metric in METRICS.values() if metric.task == "embeddings"]:
        function = globals()[name]
        values[name] = function(**{parameter: known[parameter] for parameter in signature(function).parameters})
    return values


def principal_directions(embeddings_VD: Array) -> Array:
    """Return the unit eigenvectors of E^T E as columns (D, D), by ascending eigenvalue; their signs are arbitrary.

    All are NaN if E^T E is not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        gram_DD = embeddings_VD.T @ embeddings_VD
    if not np.all(np.isfinite(gram_DD)):
        return np.full_like(gram_DD, math.nan)
    return np.asarray(np.linalg.eigh(gram_DD).eigenvectors)


def isotropy(embeddings_VD: Array, variant: Isotropy, directions_DD: Array | None = None) -> float:
    """Return the isotropy of a matrix, at most 1; ``variant`` is the study's ``evaluation.isotropy``.

    ``directions_DD`` are the matrix's principal directions, if they are known.
    """
    if variant == "eig_float32":
        return isotropy_eig_float32(embeddings_VD)
    directions_DD = principal_directions(embeddings_VD) if directions_DD is None else directions_DD
    return isotropy_both_signs(embeddings_VD, directions_DD)


def isotropy_both_signs(embeddings_VD: Array, directions_DK: Array) -> float:
    """Return min Z(c) / max Z(c) over c = ± the principal directions, Z(c) = sum_i exp(c . e_i); 1 is isotropic.

    The definition is that of Arora et al. 2016 and Mu & Viswanath 2018. The sign of an eigenvector is arbitrary, so
    both are taken; otherwise the result would depend on the solver. It is computed from log Z, so nothing overflows.
    """
    if np.any(np.isnan(directions_DK)):
        return math.nan
    smallest, largest = math.inf, -math.inf
    for start in range(0, directions_DK.shape[1], _COLUMNS):
        projections_VK = embeddings_VD @ directions_DK[:, start : start + _COLUMNS]
        for signed_VK in (projections_VK, np.negative(projections_VK)):
            peak_K = signed_VK.max(axis=0)
            log_z_K = peak_K + np.log(np.exp(signed_VK - peak_K).sum(axis=0))
            smallest, largest = min(smallest, float(log_z_K.min())), max(largest, float(log_z_K.max()))
    return math.exp(smallest - largest)


def isotropy_eig_float32(embeddings_VD: Array) -> float:
    """Return min Z(c) / max Z(c) over general eigenvectors of E^T E in float32, rounded to 4 decimals [C].

    Each eigenvector has the sign that the solver returns, so another LAPACK may give another value. Apart from
    rounding, it is never below :func:`isotropy_both_signs`. It is NaN if E^T E is not finite or if all Z overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        float32_VD = embeddings_VD.astype(np.float32)
        gram_DD = float32_VD.T @ float32_VD
        if not np.all(np.isfinite(gram_DD)):
            return math.nan
        directions_DD = np.linalg.eig(gram_DD).eigenvectors.real
        # The V terms of a direction are contiguous, so NumPy sums them pairwise, as it does in the authors' code.
        blocks = range(0, len(directions_DD), _COLUMNS)
        z = [np.exp(directions_DD[:, k : k + _COLUMNS].T @ float32_VD.T).sum(axis=1) for k in blocks]
        z_D = np.concatenate(z)
        return round(float(z_D.min() / z_D.max()), 4)


def mean_norm(embeddings_VD: Array) -> float:
    """Return the 2-norm of the mean embedding."""
    return float(np.linalg.norm(embeddings_VD.mean(axis=0)))


def mean_length(embeddings_VD: Array) -> float:
    """Return the mean of the embeddings' 2-norms."""
    return float(_lengths(embeddings_VD).mean())


def mean_norm_ratio(embeddings_VD: Array) -> float:
    """Return the norm of the mean embedding over the mean norm, in [0, 1]; NaN if all embeddings are zero."""
    length = mean_length(embeddings_VD)
    return mean_norm(embeddings_VD) / length if length > 0 else math.nan


def rho(embeddings_VD: Array, log_probability_V: Array) -> float:
    """Return Pearson's correlation of the embeddings' norms with their log unigram probabilities."""
    return pearson(_lengths(embeddings_VD), log_probability_V)


def mean_projection_correlation(embeddings_VD: Array, log_probability_V: Array) -> float:
    """Return Pearson's correlation of e_i . mu with the log unigram probabilities; mu is the mean embedding."""
    return pearson(embeddings_VD @ embeddings_VD.mean(axis=0), log_probability_V)


def kappa(embeddings_VD: Array, directions_DD: Array | None = None) -> float:
    """Return 100 times the smallest over the largest of the min(V, D) singular values; NaN if all are zero.

    A singular value is computed as ‖E c‖ for its direction c, since the root of the eigenvalue loses half the digits.
    """
    directions_DD = principal_directions(embeddings_VD) if directions_DD is None else directions_DD
    n_rows, width = embeddings_VD.shape
    extremes_D2 = directions_DD[:, [max(width - n_rows, 0), width - 1]]
    smallest, largest = np.linalg.norm(embeddings_VD @ extremes_D2, axis=0)
    return 100 * float(smallest / largest) if largest > 0 else math.nan


def log_unigram_probability(unigram_counts: NDArray[np.integer], n_rows: int) -> Array:
    """Return the natural logarithm of p + 1e-10 for ``n_rows`` tokens; rows beyond the counts have p = 0."""
    counts = np.asarray(unigram_counts, dtype=np.float64)
    if counts.ndim != 1 or len(counts) > n_rows or not np.all(counts >= 0) or counts.sum() == 0:
        raise ValueError(
            f"unigram_counts: shape {counts.shape}, sum {counts.sum():g}; "
            f"give at most {n_rows} counts (the rows of the embedding matrix), none negative and not all zero"
        )
    probability_V = np.zeros(n_rows)
    probability_V[: len(counts)] = counts / counts.sum()
    return np.log(probability_V + LOG_PROBABILITY_OFFSET)


def _lengths(embeddings_VD: Array) -> Array:
    lengths_V: Array = np.sqrt(np.einsum("vd,vd->v", embeddings_VD, embeddings_VD))
    return lengths_V
