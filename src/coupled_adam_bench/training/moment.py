"""Lines through an optimizer's second moment against the probability of tokens, of all tokens and
in ranges of B p.

V: rows, one per token of the vocabulary
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

OCCUPANCY_EDGES = (0.05, 0.2, 1.0, 10.0)
"""Bounds of ranges of B p, how often a batch of B tokens has a token of probability p; our
choice."""


@dataclass(frozen=True)
class Line:
    """A line fitted by least squares; its numbers are NaN where they are undefined."""

    slope: float
    r_squared: float


def fit_line(x: Array, y: Array) -> Line:
    """Return the ordinary least-squares line of ``y`` against ``x``, in float64.

    ``r_squared`` is the share of the variance of ``y`` that the line explains. The line is NaN if
    all ``x`` are equal, and ``r_squared`` if all ``y`` are.
    """
    x_centered, y_centered = x - x.mean(), y - y.mean()
    xx, xy, yy = (
        float(a @ b)
        for a, b in ((x_centered, x_centered), (x_centered, y_centered), (y_centered,) * 2)
    )
    if xx == 0:
        return Line(math.nan, math.nan)
    slope = xy / xx
    residual = y_centered - slope * x_centered
    r_squared = 1 - float(residual @ residual) / yy if yy else math.nan
    return Line(slope, r_squared)


def occupancy_names() -> tuple[str, ...]:
    """Return the names of the ranges of B p, in ascending order."""
    inner = (f"{low:g}_to_{high:g}" for low, high in pairwise(OCCUPANCY_EDGES))
    return f"below_{OCCUPANCY_EDGES[0]:g}", *inner, f"above_{OCCUPANCY_EDGES[-1]:g}"


def moment_by_occupancy(
    moment_V: Array, counts_V: NDArray[np.int64], batch_tokens: int
) -> dict[str, float]:
    """Return how an optimizer's second moment of rows follows the probability of their tokens, of
    all that occur and in each range of B p.

    These are the slope and R² of a line, and the exponent, which is the slope of the line through
    logarithms; by range also the geometric mean of B p. What is not finite is left out.
    """
    probability_V = counts_V / counts_V.sum()
    kept_V = (counts_V > 0) & (moment_V > 0)
    p, moment = probability_V[kept_V], moment_V[kept_V]
    of_range = np.digitize(batch_tokens * p, OCCUPANCY_EDGES)
    found = _lines(p, moment, "")
    for number, name in enumerate(occupancy_names()):
        chosen = of_range == number
        if chosen.sum() < 3:
            continue
        found |= _lines(p[chosen], moment[chosen], f"_{name}")
        found[f"moment_occupancy_{name}"] = batch_tokens * float(np.exp(np.log(p[chosen]).mean()))
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _lines(p: Array, moment: Array, end: str) -> dict[str, float]:
    """Return the numbers of both lines through some tokens by names with this ``end``, none for
    fewer than three."""
    if len(p) < 3:
        return {}
    straight, logs = fit_line(p, moment), fit_line(np.log(p), np.log(moment))
    return {
        f"moment_slope{end}": straight.slope,
        f"moment_r_squared{end}": straight.r_squared,
        f"moment_exponent{end}": logs.slope,
    }
