"""Correlation coefficients that are exactly NaN where they are undefined, without a warning."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Return Pearson's correlation of two sequences of the same length.

    It is NaN if there are fewer than two values, if one sequence is constant, or if a value is not finite.
    """
    x_centered, y_centered = _centered(x), _centered(y)
    if x_centered.shape != y_centered.shape or x_centered.ndim != 1:
        raise ValueError(f"x, y: one-dimensional and of equal length, got {x_centered.shape} and {y_centered.shape}")
    if x_centered.size < 2 or not (np.any(x_centered) and np.any(y_centered)):
        return math.nan
    norms = float(np.linalg.norm(x_centered) * np.linalg.norm(y_centered))
    return max(-1.0, min(1.0, float(x_centered @ y_centered) / norms)) if math.isfinite(norms) else math.nan


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Return Spearman's correlation, which is :func:`pearson` of the ranks; ties have their mean rank."""
    return pearson(_ranks(x), _ranks(y))


def _centered(values: ArrayLike) -> NDArray[np.float64]:
    """Subtract the mean and scale to a maximum of 1 against overflow; constant input becomes exact zeros."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0 or not np.all(np.isfinite(array)):
        return np.full(array.shape, math.nan)
    if np.all(array == array[0]):
        return np.zeros_like(array)
    scaled: NDArray[np.float64] = array / np.max(np.abs(array))
    scaled -= np.mean(scaled)
    scaled /= np.max(np.abs(scaled))
    return scaled


def _ranks(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(array)):
        return np.full(array.shape, math.nan)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    mean_ranks: NDArray[np.float64] = np.cumsum(counts) - (counts - 1) / 2
    return mean_ranks[inverse]
