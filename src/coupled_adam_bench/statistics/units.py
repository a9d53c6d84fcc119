"""Differences of two trained models over units of text, that is documents or windows, and how sure they are.

All p-values here are two-sided. They say what other text of the kind would show of these very models; what other seeds
would show is in ``tests.csv``.  N: units
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.statistics.student import interval, one_sided_p, statistic

Floats = NDArray[np.float64]
MIN_BLOCKS = 3
"""The fewest blocks of windows from which a spread is estimated."""


@dataclass(frozen=True)
class Estimate:
    """A mean difference over ``n`` units, with its standard error and degrees of freedom; NaN where it has none."""

    n: int
    difference: float
    standard_error: float
    df: float

    @property
    def p_value(self) -> float:
        """The two-sided p-value of Student's t-test that there is no difference."""
        if math.isnan(self.standard_error):
            return math.nan
        t = abs(statistic(self.difference, self.standard_error))
        return min(1.0, 2 * one_sided_p(t, self.df, higher=True))

    @property
    def interval(self) -> tuple[float, float]:
        """The two-sided interval of the difference by Student's t."""
        return interval(self.difference, self.standard_error, self.df)


def of_documents(differences_N: Floats) -> Estimate:
    """Return the mean of paired differences of documents, which are independent of each other."""
    n = len(differences_N)
    error = float(np.std(differences_N, ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return Estimate(n, float(np.mean(differences_N)), error, n - 1)


def of_windows(differences_N: Floats, n_targets_N: NDArray[np.int64]) -> Estimate:
    """Return the mean of paired differences of windows in the order of the text, weighted by their targets.

    Neighbouring windows share documents, and their differences are alike. So the windows are cut into about sqrt(N)
    blocks of about sqrt(N) neighbours, and the spread is that over blocks (batch means, Flegal and Jones 2010).
    """
    n, weights_N = len(differences_N), n_targets_N / n_targets_N.sum()
    difference = float(weights_N @ differences_N)
    n_blocks = math.isqrt(n)
    if n_blocks < MIN_BLOCKS:
        return Estimate(n, difference, math.nan, math.nan)
    starts = np.arange(n_blocks) * n // n_blocks
    # What each block adds to the difference beyond its share: these sum to zero.
    parts = np.add.reduceat(weights_N * (differences_N - difference), starts)
    return Estimate(n, difference, math.sqrt(n_blocks / (n_blocks - 1) * float(parts @ parts)), n_blocks - 1)


def average(estimates: Sequence[Estimate]) -> Estimate:
    """Return the unweighted mean of estimates on different text, with Satterthwaite's degrees of freedom (1946)."""
    squares = [(each.standard_error / len(estimates)) ** 2 for each in estimates]
    spread = math.fsum(s**2 / each.df for s, each in zip(squares, estimates, strict=True) if s)
    variance = math.fsum(squares)
    return Estimate(
        sum(each.n for each in estimates),
        math.fsum(each.difference for each in estimates) / len(estimates),
        math.sqrt(variance),
        variance**2 / spread if spread else math.fsum(each.df for each in estimates),
    )


def mcnemar_p(n_better: int, n_worse: int) -> float:
    """Return the two-sided p-value of McNemar's exact test of what only one of two models has right."""
    from statsmodels.stats.contingency_tables import mcnemar

    return float(mcnemar([[0, n_better], [n_worse, 0]], exact=True).pvalue)
