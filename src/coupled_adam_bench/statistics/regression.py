"""Lines through paired differences over the sizes of a study: one within each seed, and Student's t over the seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

CONFIDENCE = 0.95
"""Coverage of all intervals."""


@dataclass(frozen=True)
class Fit:
    """The mean of the lines of ``n_seeds`` seeds: its first estimate is the value at the centre, the others are slopes.

    ``covariance`` is that of the estimates, with ``df`` degrees of freedom. ``centre`` are the means of the covariates.
    Without a fit, ``reason`` says why, and all numbers but ``n_seeds`` are NaN.
    """

    estimates: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    df: float
    centre: tuple[float, ...]
    n_seeds: int
    reason: str

    def standard_error(self, index: int) -> float:
        """Return the standard error of an estimate."""
        return math.sqrt(self.covariance[index][index])


def t_quantile(df: float) -> float:
    """Return half the width of a two-sided interval of ``CONFIDENCE`` in standard errors."""
    return float(stdtrit(df, (1 + CONFIDENCE) / 2))


def upper_tail(estimate: float, standard_error: float, df: float) -> float:
    """Return the one-sided p-value of an estimate above 0; without any error it is 0, 1 or, for an estimate of 0, 1."""
    if standard_error > 0:
        return float(stdtr(df, -estimate / standard_error))
    return math.nan if math.isnan(estimate) else float(estimate <= 0)


def no_fit(n_slopes: int, n_seeds: int, reason: str) -> Fit:
    """Return a fit that says why there is none."""
    nans = (math.nan,) * (1 + n_slopes)
    return Fit(nans, (nans,) * len(nans), math.nan, nans[1:], n_seeds, reason)


def fit_line(values: Sequence[float], covariates: Sequence[Sequence[float]], seeds: Sequence[int]) -> Fit:
    """Fit ``values`` of shape (n) by ``covariates`` of shape (n, slopes): a line within each seed, by least squares.

    The spread is that of the seeds' lines, so it holds whatever the values of a seed have in common: an effect, a slope
    or the trunk of their schedule. Intervals are exact for normal noise if all seeds have the same covariates. A seed
    whose values do not determine a line is left out.
    """
    y, slopes = np.asarray(values, dtype=float), np.asarray(covariates, dtype=float).reshape(len(values), -1)
    centre = slopes.mean(axis=0)
    design = np.column_stack([np.ones(len(y)), slopes - centre])
    n_slopes = slopes.shape[1]
    if np.linalg.matrix_rank(design) <= n_slopes:
        return no_fit(n_slopes, 0, "tokens and parameters vary together only")
    of_seeds = [np.asarray(seeds) == seed for seed in dict.fromkeys(seeds)]
    fits = [np.linalg.lstsq(design[of_seed], y[of_seed], rcond=None) for of_seed in of_seeds]
    lines = np.array([line for line, _, rank, _ in fits if rank > n_slopes])
    if len(lines) < 2:
        return no_fit(n_slopes, len(lines), f"{len(lines)} seed(s) with places enough for a line, their spread needs 2")
    covariance = np.atleast_2d(np.cov(lines, rowvar=False)) / len(lines)
    return Fit(
        estimates=tuple(lines.mean(axis=0).tolist()),
        covariance=tuple(map(tuple, covariance.tolist())),
        df=len(lines) - 1.0,
        centre=tuple(centre.tolist()),
        n_seeds=len(lines),
        reason="",
    )
