"""A sample of a number over seeds: how many there are, their mean and their spread; and what is
left of a difference once the rounding of its computation is taken away."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

# Equal accuracies, as means over tasks and seeds, may differ in their last bit. Such a difference
# would win a comparison and, with the same bit in each seed, have p = 0.
ROUNDING = 1e-12
"""A difference of numbers is none if it is less than this share of the largest of them.

Sums and means in float64 are off by some 1e-16 of their terms; trained models of float32 differ by
more than 1e-9.
"""


def rounding_of(*numbers: float) -> float:
    """Return the largest size of what is left of ``numbers`` only by rounding."""
    return ROUNDING * max(map(abs, numbers))


def without_rounding(value: float, *numbers: float) -> float:
    """Return ``value``, which was computed from ``numbers``, or 0 if it is smaller than their
    rounding."""
    return 0.0 if abs(value) < rounding_of(*numbers) else value


def difference(first: float, second: float) -> float:
    """Return ``first`` minus ``second``, or 0 if that is rounding."""
    return without_rounding(first - second, first, second)


@dataclass(frozen=True)
class Sample:
    """Number of finite values, mean and sample standard deviation; mean and sd are NaN if a value
    is not finite."""

    n: int
    mean: float
    sd: float


def summarize(values: Sequence[float]) -> Sample:
    """Return number, mean and sample standard deviation (NaN for fewer than two values).

    Both are the exact values, rounded once, as ``statistics`` computes them, and 0 where they are
    only rounding: so values that differ by their last bit have a standard deviation of 0, as equal
    values have.
    """
    finite = [float(value) for value in values if math.isfinite(value)]
    n = len(finite)
    if not n or n < len(values):
        return Sample(n, math.nan, math.nan)
    sd = without_rounding(stdev(finite), *finite) if n > 1 else math.nan
    return Sample(n, without_rounding(mean(finite), *finite), sd)
