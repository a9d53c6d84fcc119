"""A sample of a number over seeds: how many there are, their mean and their spread."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from coupled_adam_bench.results.rounding import without_rounding


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
