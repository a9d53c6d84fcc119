"""Differences of two trained models over documents of tasks or of held-out text, and how sure they
are.

All p-values here are two-sided. They say what other text of the kind would show of these very
models; what other seeds would show is in ``tests.csv``.

N: documents of a task    G: held-out documents    P: pieces of windows
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.results.sample import without_rounding
from coupled_adam_bench.statistics.student import interval, one_sided_p, t_ratio, two_sided_p

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean difference over ``n`` units, with its standard error and degrees of freedom; NaN where
    these are not defined."""

    n: int
    difference: float
    standard_error: float
    df: float

    @property
    def p_value(self) -> float:
        """The two-sided p-value of Student's t-test that there is no difference."""
        one_sided = one_sided_p(self.difference, self.standard_error, self.df, higher=True)
        return two_sided_p(one_sided, t_ratio(self.difference, self.standard_error), self.df)

    @property
    def interval(self) -> tuple[float, float]:
        """The two-sided interval of the difference by Student's t, NaN without any spread."""
        return interval(self.difference, self.standard_error, self.df)


def of_documents(differences_N: Floats) -> Estimate:
    """Return the mean of paired differences of documents, which are independent of each other."""
    n, largest = len(differences_N), float(np.abs(differences_N).max())
    sd = without_rounding(float(np.std(differences_N, ddof=1)), largest) if n > 1 else math.nan
    return Estimate(
        n, without_rounding(float(np.mean(differences_N)), largest), sd / math.sqrt(n), n - 1
    )


def document_means(
    documents_P: NDArray[np.int64], n_targets_P: NDArray[np.int64], *losses_P: Floats
) -> tuple[Floats, list[Floats]]:
    """Return the targets of each held-out document, shape (G,), and its mean loss for each of
    ``losses_P``."""
    _, place_P = np.unique(documents_P, return_inverse=True)
    n_targets_G = np.asarray(np.bincount(place_P, n_targets_P), np.float64)
    return n_targets_G, [
        np.bincount(place_P, n_targets_P * losses) / n_targets_G for losses in losses_P
    ]


def of_held_out(values_G: Floats, n_targets_G: Floats) -> Estimate:
    """Return the mean over targets of what held-out documents have, given the mean of each and its
    targets.

    Documents are independent, the targets of one are not. So the variance is that of the jackknife,
    which leaves out one document at a time. Its degrees of freedom are Satterthwaite's, with
    independent targets as the working model (Bell and McCaffrey 2002). For documents of one length
    this is the paired t-test; unequal ones leave fewer degrees.
    """
    n, share_G = len(values_G), n_targets_G / n_targets_G.sum()
    mean = float(share_G @ values_G)
    if n < 2:
        return Estimate(n, mean, math.nan, math.nan)
    square_G = (share_G / (1 - share_G)) ** 2
    jackknife = math.sqrt((n - 1) / n * float(square_G @ (values_G - mean) ** 2))
    error = without_rounding(jackknife, float(np.abs(values_G).max()))
    trace = (square_G / share_G).sum() - square_G.sum()
    df = trace**2 / ((square_G**2 / share_G * (1 / share_G - 2)).sum() + square_G.sum() ** 2)
    return Estimate(n, mean, error, float(df))


def average(estimates: Sequence[Estimate]) -> Estimate:
    """Return the unweighted mean of estimates on different text, with Satterthwaite's degrees of
    freedom (1946)."""
    squares = [(each.standard_error / len(estimates)) ** 2 for each in estimates]
    spread = math.fsum(s**2 / each.df for s, each in zip(squares, estimates, strict=True) if s)
    variance = math.fsum(squares)
    differences = [each.difference for each in estimates]
    mean = math.fsum(differences) / len(estimates)
    n = sum(each.n for each in estimates)
    df = variance**2 / spread if spread else math.fsum(each.df for each in estimates)
    return Estimate(n, without_rounding(mean, *differences), math.sqrt(variance), df)


def mcnemar_p(n_better: int, n_worse: int) -> float:
    """Return the two-sided p-value of McNemar's exact test of what only one of two models has
    right."""
    # Only here: its import takes longer than the statistics of a study that compares no documents.
    from scipy.stats import binom

    one_sided = binom.cdf(min(n_better, n_worse), n_better + n_worse, 0.5)
    return min(1.0, 2 * float(one_sided))
