"""What a paired t-test of a few seeds can find: power, detectable effects, seeds that are needed.

An effect is the true mean of the differences between runs of one seed, over their standard
deviation. The square of t has a noncentral F distribution (Cohen 1988).
"""

import math
from bisect import bisect_left
from functools import cache

from scipy.optimize import brentq
from scipy.special import ncfdtr, stdtrit

POWER = 0.8
"""The probability with which an effect should be found: the usual one (Cohen 1988)."""
MOST_SEEDS = 10_000


def power_of(effect: float, n_seeds: int, alpha: float) -> float:
    """Return the power of the two-sided paired t-test at level ``alpha``."""
    edge = float(stdtrit(n_seeds - 1, 1 - alpha / 2))
    return float(1 - ncfdtr(1, n_seeds - 1, n_seeds * effect**2, edge**2))


@cache
def detectable_effect(n_seeds: int, alpha: float) -> float:
    """Return the effect, below 100, that is found with the probability ``POWER``.

    NaN for a single seed.
    """
    if n_seeds < 2:
        return math.nan
    return float(brentq(lambda effect: power_of(effect, n_seeds, alpha) - POWER, 0.0, 100.0))


def seeds_needed(effect: float, alpha: float) -> float:
    """Return the fewest seeds that find an effect with the probability ``POWER``.

    NaN for no effect, and where ``MOST_SEEDS`` are too few.
    """
    if not effect > 0:
        return math.nan
    numbers = range(2, MOST_SEEDS + 1)
    place = bisect_left(numbers, POWER, key=lambda n_seeds: power_of(effect, n_seeds, alpha))
    return float(numbers[place]) if place < len(numbers) else math.nan
