"""The second moment of a token's gradient as a function of the token's probability, as in the paper's Fig. 4.

Shapes: V = vocab_size.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """A line fitted by least squares; its numbers are NaN where they are undefined."""

    slope: float
    intercept: float
    r_squared: float


def fit_line(x: Array, y: Array) -> Line:
    """Return the ordinary least-squares line of ``y`` against ``x``, in float64.

    ``r_squared`` is the share of the variance of ``y`` that the line explains. The line is NaN if all ``x`` are equal,
    and ``r_squared`` if all ``y`` are.
    """
    x_centered, y_centered = x - x.mean(), y - y.mean()
    xx, xy, yy = (float(a @ b) for a, b in ((x_centered, x_centered), (x_centered, y_centered), (y_centered,) * 2))
    if xx == 0:
        return Line(math.nan, math.nan, math.nan)
    slope = xy / xx
    residual = y_centered - slope * x_centered
    r_squared = 1 - float(residual @ residual) / yy if yy else math.nan
    return Line(slope, float(y.mean() - slope * x.mean()), r_squared)


def against_probability(mean_square_V: Array, unigram_counts_V: NDArray[np.int64]) -> dict[str, Any]:
    """Return the second moment against the unigram probability, as points and a fitted line, for tokens that occur.

    The paper derives E[v_i] ~ A p_i and fits A [P]; the intercept is ours [I].
    """
    occurs_V = unigram_counts_V > 0
    probability = unigram_counts_V[occurs_V] / unigram_counts_V.sum()
    line = fit_line(probability, mean_square_V[occurs_V])
    return {"probability": probability.tolist(), "mean_square": mean_square_V[occurs_V].tolist(), **vars(line)}
