"""Variance components by analysis of variance: how much of a spread comes from each of two crossed factors.

a, b: levels of the factors, such as seeds of the initial weights and of the order of the data.
"""

from dataclasses import dataclass
from math import nan, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, fdtri

LEVEL = 0.95
"""Level of the two-sided intervals."""


@dataclass(frozen=True)
class Component:
    """A variance component: the unbiased estimate, which may be below 0, its interval and degrees of freedom.

    ``df`` are those of the mean square that the estimate is made of.
    """

    variance: float
    low: float
    high: float
    df: int


MISSING = Component(nan, nan, nan, 0)


def one_way(values: NDArray[np.float64]) -> Component:
    """Return the variance of independent values, with the exact interval of normal ones: df s^2 / chi^2."""
    df = len(values) - 1
    return _of_mean_square(float(values.var(ddof=1)), df)


def _of_mean_square(mean_square: float, df: int) -> Component:
    tail = (1 - LEVEL) / 2
    low, high = (df * mean_square / float(chdtri(df, probability)) for probability in (tail, 1 - tail))
    return Component(mean_square, low, high, df)


def two_way(values_ab: NDArray[np.float64]) -> tuple[Component, Component, Component]:
    """Return the components of rows, of columns and of the rest in a crossed design with one value in each place.

    The model is y_ij = mu + A_i + B_j + e_ij with independent A, B and e. The rest e holds the interaction of the
    factors and everything else, such as rounding. With the mean squares of the analysis of variance,
    var A = (MS_A - MS_e) / b and var B = (MS_B - MS_e) / a (Searle, Casella & McCulloch 1992, section 4.4).
    """
    a, b = values_ab.shape
    mean, rows, columns = values_ab.mean(), values_ab.mean(axis=1), values_ab.mean(axis=0)
    rest = values_ab - rows[:, None] - columns[None, :] + mean
    df_a, df_b, df_rest = a - 1, b - 1, (a - 1) * (b - 1)
    ms_a = float(b * ((rows - mean) ** 2).sum() / df_a)
    ms_b = float(a * ((columns - mean) ** 2).sum() / df_b)
    ms_rest = float((rest**2).sum() / df_rest)
    return (
        _difference(ms_a, df_a, ms_rest, df_rest, b),
        _difference(ms_b, df_b, ms_rest, df_rest, a),
        _of_mean_square(ms_rest, df_rest),
    )


def _difference(ms: float, df: int, ms_rest: float, df_rest: int, n: int) -> Component:
    """Return the component (MS - MS_rest) / n, with the interval of Ting et al. (1990).

    That interval is exact where one of the two variances is 0 and close to its level between. The formulas and their
    letters are those of Burdick & Graybill (1992), section 3.3. Its ends are cut off at 0, below which no variance is.
    """
    tail = (1 - LEVEL) / 2

    def bound(upper: bool) -> float:
        probability = 1 - tail if upper else tail  # that a value is above the quantile
        f = float(fdtri(df, df_rest, 1 - probability))
        of_ms = 1 - df / float(chdtri(df, probability))  # G1 of the lower end, -H1 of the upper
        of_rest = 1 - df_rest / float(chdtri(df_rest, 1 - probability))  # -H2 of the lower end, G2 of the upper
        both = ((f - 1) ** 2 - of_ms**2 * f**2 - of_rest**2) / f
        square = of_ms**2 * ms**2 + of_rest**2 * ms_rest**2 + both * ms * ms_rest
        return sqrt(max(0.0, square))

    estimate = ms - ms_rest
    return Component(
        estimate / n, max(0.0, (estimate - bound(upper=False)) / n), max(0.0, (estimate + bound(upper=True)) / n), df
    )
