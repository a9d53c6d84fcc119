"""What all tests with Student's t share: the statistic, its one-sided p-value, and the interval of a difference."""

import math

from scipy.special import stdtr, stdtrit

ALPHA = 0.05
"""Level of significance [P], App. F."""
LEVEL = 0.95
"""Confidence level of all intervals, which are two-sided."""


def statistic(difference: float, standard_error: float) -> float:
    """Return t; without any spread it is +-inf for a difference and NaN for none."""
    if standard_error > 0:
        return difference / standard_error
    return math.copysign(math.inf, difference) if difference else math.nan


def one_sided_p(t: float, df: float, higher: bool) -> float:
    """Return P(T > t) or, unless ``higher``, P(T < t) of Student's t; 1 where t is NaN, as nothing differs."""
    return 1.0 if math.isnan(t) else float(stdtr(df, -t if higher else t))


def two_sided_p(one_sided: float, t: float, df: float) -> float:
    """Return P(|T| > |t|) of Student's t; where t is NaN, the one-sided p: 1 if nothing differs, NaN without a test."""
    return one_sided if math.isnan(t) else min(1.0, 2 * one_sided_p(abs(t), df, higher=True))


def interval(difference: float, standard_error: float, df: float) -> tuple[float, float]:
    """Return the two-sided interval of a difference at ``LEVEL``; one point where nothing varies."""
    half = float(stdtrit(df, (1 + LEVEL) / 2)) * standard_error
    return difference - half, difference + half


def equivalence_p(difference: float, standard_error: float, df: float, margin: float) -> float:
    """Return the p-value of two one-sided tests (Schuirmann 1987) that a difference lies within +-``margin``.

    It is the larger of the two, so it also tests alone that the worse one is worse by less than the margin. NaN
    without a margin, or without a standard error.
    """
    if math.isnan(margin) or math.isnan(standard_error):
        return math.nan
    above = one_sided_p(statistic(difference + margin, standard_error), df, higher=True)
    below = one_sided_p(statistic(difference - margin, standard_error), df, higher=False)
    return max(above, below)
