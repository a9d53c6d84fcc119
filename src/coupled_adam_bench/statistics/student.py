"""Student's t-tests: the one-sided two-sample test with effect size and Welch's p-value, and what
all tests share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from coupled_adam_bench.results.facts import ALPHA as ALPHA
from coupled_adam_bench.results.sample import Sample, summarize
from coupled_adam_bench.results.sample import difference as difference_of

LEVEL = 0.95
"""Confidence level of all intervals, which are two-sided."""


# Counts, such as the right items of a task, are equal over a few seeds by chance. Their spread of 0
# would be taken for certainty: p would be 0, and no correction could raise it (docs/statistics.md).
NO_SPREAD = "no spread, so no test"
"""Why there is no test of a difference that is the same everywhere."""
NO_INTERVAL = "no spread, so no interval"
"""Why there is no interval of such a difference."""


def t_ratio(difference: float, standard_error: float) -> float:
    """Return t; NaN without any spread."""
    return difference / standard_error if standard_error > 0 else math.nan


def one_sided_p(difference: float, standard_error: float, df: float, higher: bool) -> float:
    """Return P(T > t) or, unless ``higher``, P(T < t) of Student's t for a difference.

    Without any spread it is 1 if nothing differs, and else NaN, which is no test.
    """
    t = t_ratio(difference, standard_error)
    if math.isnan(t):
        return 1.0 if difference == 0 and standard_error == 0 else math.nan
    return float(stdtr(df, -t if higher else t))


def two_sided_p(one_sided: float, t: float, df: float) -> float:
    """Return P(|T| > |t|) of Student's t; where t is NaN, the one-sided p: 1 if nothing differs,
    NaN without a test."""
    return one_sided if math.isnan(t) else min(1.0, 2 * float(stdtr(df, -abs(t))))


def t_quantile(df: float) -> float:
    """Return half the width of a two-sided interval at ``LEVEL`` in standard errors."""
    return float(stdtrit(df, (1 + LEVEL) / 2))


def interval(difference: float, standard_error: float, df: float) -> tuple[float, float]:
    """Return the two-sided interval of a difference at ``LEVEL``, NaN without any spread."""
    if not standard_error > 0:
        return math.nan, math.nan
    half = t_quantile(df) * standard_error
    return difference - half, difference + half


def mean_interval(sample: Sample) -> tuple[float, float]:
    """Return the two-sided interval of the mean of a sample at ``LEVEL``, NaN for fewer than two
    values and for equal ones."""
    if sample.n < 2:
        return math.nan, math.nan
    return interval(sample.mean, sample.sd / math.sqrt(sample.n), sample.n - 1)


def equivalence_p(difference: float, standard_error: float, df: float, margin: float) -> float:
    """Return the p-value of two one-sided tests (Schuirmann 1987) that a difference lies within
    +-``margin``.

    It is the larger of the two, so it also tests by itself that the worse one is worse by less than
    the margin. NaN without a margin, or without any spread.
    """
    if math.isnan(margin) or not standard_error > 0:
        return math.nan
    above = one_sided_p(difference_of(difference, -margin), standard_error, df, higher=True)
    below = one_sided_p(difference_of(difference, margin), standard_error, df, higher=False)
    return max(above, below)


@dataclass(frozen=True)
class TTest:
    """Result of :func:`t_test`.

    ``difference``, ``t`` and ``hedges_g`` are first minus second, ``low`` and ``high`` are the
    interval of the difference; ``reason`` says why there is no test, or is empty.
    """

    first: Sample
    second: Sample
    difference: float
    t: float = math.nan
    df: float = math.nan
    p_value: float = math.nan
    hedges_g: float = math.nan
    p_welch: float = math.nan
    standard_error: float = math.nan
    low: float = math.nan
    high: float = math.nan
    reason: str = ""


def _untestable(name: str, values: Sequence[float], sample: Sample) -> str:
    if sample.n < len(values):
        return f"{name}: {len(values) - sample.n} of {len(values)} values missing"
    return "" if sample.n > 1 else f"{name}: {sample.n} value(s), the test needs 2"


def t_test(
    first: Sequence[float],
    second: Sequence[float],
    higher_is_better: bool,
    names: tuple[str, str] = ("first", "second"),
) -> TTest:
    """Test whether ``first`` is better than ``second``: Student's t-test, one-sided, pooled
    variance [P][I].

    ``p_welch``, without equal variances, is for information. Too few or missing values give NaN,
    never significance. If neither sample varies, there is no test of different means, and equal
    ones have p = 1.
    """
    a, b = summarize(first), summarize(second)
    difference = difference_of(a.mean, b.mean)
    reason = "; ".join(
        filter(None, (_untestable(names[0], first, a), _untestable(names[1], second, b)))
    )
    if reason:
        return TTest(a, b, difference, reason=reason)
    df = a.n + b.n - 2
    pooled_sd = math.sqrt(((a.n - 1) * a.sd**2 + (b.n - 1) * b.sd**2) / df)
    standard_error = pooled_sd * math.sqrt(1 / a.n + 1 / b.n)
    t = t_ratio(difference, standard_error)
    if math.isnan(t):
        reason = NO_SPREAD if difference else "all values are equal"
    # Hedges 1981, eq. 6e: the exact factor that makes Cohen's d unbiased.
    unbias = math.exp(math.lgamma(df / 2) - math.lgamma((df - 1) / 2)) / math.sqrt(df / 2)
    square_a, square_b = a.sd**2 / a.n, b.sd**2 / b.n
    welch_error = math.sqrt(square_a + square_b)
    # Welch-Satterthwaite; without any variance every df gives the same p.
    spread = square_a**2 / (a.n - 1) + square_b**2 / (b.n - 1)
    df_welch = (square_a + square_b) ** 2 / spread if spread else float(df)
    low, high = interval(difference, standard_error, df)
    return TTest(
        a,
        b,
        difference,
        t,
        float(df),
        one_sided_p(difference, standard_error, df, higher_is_better),
        hedges_g=t_ratio(difference, pooled_sd) * unbias,
        p_welch=one_sided_p(difference, welch_error, df_welch, higher_is_better),
        standard_error=standard_error,
        low=low,
        high=high,
        reason=reason,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values (Holm 1979), in the order given; NaN is no test, counts for
    none and stays NaN.

    Those of at most alpha hold, with a probability of 1 - alpha, no false one. They are the bits of
    statsmodels' ``multipletests``, whose import takes longer than all statistics of a study.
    """
    adjusted = np.array(p_values, dtype=float)
    order = np.argsort(adjusted, kind="stable")[: np.isfinite(adjusted).sum()]  # NaN is last
    largest = np.maximum.accumulate(adjusted[order] * np.arange(len(order), 0, -1))
    adjusted[order] = np.minimum(largest, 1.0)
    return list(map(float, adjusted))


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return the adjusted p-values of Benjamini and Hochberg (1995), as :func:`holm`.

    Among those of at most alpha, the expected share of false ones is at most alpha.
    """
    adjusted = np.array(p_values, dtype=float)
    order = np.argsort(adjusted, kind="stable")[: np.isfinite(adjusted).sum()]  # NaN is last
    raised = adjusted[order] / (np.arange(1, len(order) + 1) / len(order))
    smallest = np.minimum.accumulate(raised[::-1])[::-1]
    adjusted[order] = np.minimum(smallest, 1.0)
    return list(map(float, adjusted))
