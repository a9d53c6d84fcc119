"""Correlation coefficients that are exactly NaN where they are undefined, without a warning, and
their intervals.

The intervals are percentiles of resamples of the pairs of values (Efron & Tibshirani 1993, chapter
13).

P: pairs of values    B: resamples    G: groups of equal values
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

RESAMPLES = 1000
"""Number of resamples; Efron & Tibshirani 1993 take 1000 for percentiles."""
LEVEL = 0.95
_CONSTANT = 1e-12
"""Variance, of values with a maximum of 1, below which a resample counts as constant."""


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Return Pearson's correlation of two sequences of the same length.

    It is NaN if there are fewer than two values, if one sequence is constant, or if a value is not
    finite.
    """
    x_centered, y_centered = _centered(x), _centered(y)
    if x_centered.shape != y_centered.shape or x_centered.ndim != 1:
        raise ValueError(
            f"x, y: one-dimensional and of equal length, got {x_centered.shape} and"
            f" {y_centered.shape}"
        )
    if x_centered.size < 2 or not (np.any(x_centered) and np.any(y_centered)):
        return math.nan
    norms = float(np.linalg.norm(x_centered) * np.linalg.norm(y_centered))
    return (
        max(-1.0, min(1.0, float(x_centered @ y_centered) / norms))
        if math.isfinite(norms)
        else math.nan
    )


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Return Spearman's correlation, which is ``pearson`` of the ranks; ties have their mean
    rank."""
    return pearson(_ranks(x), _ranks(y))


def _centered(values: ArrayLike) -> Array:
    """Subtract the mean and scale to a maximum of 1 against overflow; constant input becomes exact
    zeros."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0 or not np.all(np.isfinite(array)):
        return np.full(array.shape, math.nan)
    if np.all(array == array[0]):
        return np.zeros_like(array)
    scaled: Array = array / np.max(np.abs(array))
    scaled -= np.mean(scaled)
    scaled /= np.max(np.abs(scaled))
    return scaled


def _ranks(values: ArrayLike) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(array)):
        return np.full(array.shape, math.nan)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    mean_ranks: Array = np.cumsum(counts) - (counts - 1) / 2
    return mean_ranks[inverse]


def resamples(n_pairs: int, seed: int) -> Array:
    """Return how often each pair is in each resample (B, P), drawn with replacement; each row has
    the sum P."""
    drawn_BP = np.random.default_rng(seed).integers(max(n_pairs, 1), size=(RESAMPLES, n_pairs))
    drawn_BP += np.arange(RESAMPLES)[:, None] * n_pairs
    counts = np.bincount(drawn_BP.ravel(), minlength=RESAMPLES * n_pairs)
    return counts.reshape(drawn_BP.shape).astype(np.float64)


def pearson_resamples(x: ArrayLike, y: ArrayLike, counts_BP: Array) -> Array:
    """Return Pearson's correlation in each resample (B,); NaN where one of the sequences is
    constant or not finite."""
    x_P, y_P = _centered(x), _centered(y)
    return _weighted(
        np.broadcast_to(x_P, counts_BP.shape), np.broadcast_to(y_P, counts_BP.shape), counts_BP
    )


def spearman_resamples(x: ArrayLike, y: ArrayLike, counts_BP: Array) -> Array:
    """Return Spearman's correlation in each resample (B,), with the ranks and ties of that
    resample."""
    return _weighted(_resampled_ranks(x, counts_BP), _resampled_ranks(y, counts_BP), counts_BP)


def interval(values_B: Array) -> tuple[float, float]:
    """Return the percentile interval of :data:`LEVEL`; resamples that are NaN are left out, and NaN
    if all are."""
    defined = values_B[~np.isnan(values_B)]
    if defined.size == 0:
        return math.nan, math.nan
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _resampled_ranks(values: ArrayLike, counts_BP: Array) -> Array:
    """Return the rank of each value in each resample (B, P), scaled to at most 1; equal values have
    their mean rank."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0 or not np.all(np.isfinite(array)):
        return np.full(counts_BP.shape, math.nan)
    _, first_G, group_P = np.unique(np.sort(array), return_index=True, return_inverse=True)
    order_P = np.argsort(array, kind="stable")
    counts_BG = np.add.reduceat(counts_BP[:, order_P], first_G, axis=1)
    mean_rank_BG = np.cumsum(counts_BG, axis=1) - (counts_BG - 1) / 2
    ranks_BP = np.empty_like(counts_BP)
    ranks_BP[:, order_P] = mean_rank_BG[:, group_P]
    return ranks_BP / array.size - 0.5


def _weighted(x_BP: Array, y_BP: Array, counts_BP: Array) -> Array:
    """Return Pearson's correlation of each row of x and y, each column as often as ``counts_BP``
    says."""
    n_pairs = max(counts_BP.shape[1], 1)

    def mean(values_BP: Array) -> Array:
        means_B: Array = np.einsum("bp,bp->b", counts_BP, values_BP) / n_pairs
        return means_B

    mean_x, mean_y = mean(x_BP), mean(y_BP)
    variance_x, variance_y = mean(x_BP * x_BP) - mean_x**2, mean(y_BP * y_BP) - mean_y**2
    covariance = mean(x_BP * y_BP) - mean_x * mean_y
    defined = (variance_x > _CONSTANT) & (variance_y > _CONSTANT)
    root = np.sqrt(np.where(defined, variance_x * variance_y, 1.0))
    correlation: Array = np.where(defined, np.clip(covariance / root, -1.0, 1.0), math.nan)
    return correlation
