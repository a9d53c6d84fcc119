"""Tests of two optimizers seed by seed: runs of one seed share data, their order and the initial
weights.

S: seeds that both have
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement, product

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.results.sample import (
    Sample,
    difference,
    rounding_of,
    summarize,
    without_rounding,
)
from coupled_adam_bench.statistics.student import (
    LEVEL,
    NO_SPREAD,
    interval,
    mean_interval,
    one_sided_p,
    t_ratio,
)

Floats = NDArray[np.float64]

# Beyond these numbers of seeds, samples are drawn instead of enumerated: 2^12 = 4,096 flips of
# signs, and 1,716 multisets of 7 out of 7 (6,435 of 8).
MAX_FLIPPED, MAX_RESAMPLED = 12, 7
N_DRAWN = 10_000
RANDOM_SEED = 0


@dataclass(frozen=True)
class PairedTest:
    """Result of :func:`paired_test`.

    ``difference`` is the mean of first minus second over ``n`` seeds, ``low`` and ``high`` are its
    interval by Student's t, and ``bootstrap_low`` and ``bootstrap_high`` that over resampled seeds.
    ``p_permutation_min`` is the smallest p-value that flips of ``n`` signs can give. ``reason``
    says why there is no test, or is empty.
    """

    n: int
    difference: float = math.nan
    standard_error: float = math.nan
    t: float = math.nan
    p_value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p_permutation: float = math.nan
    p_permutation_min: float = math.nan
    bootstrap_low: float = math.nan
    bootstrap_high: float = math.nan
    reason: str = ""


def paired_test(
    first: Mapping[int, float], second: Mapping[int, float], higher_is_better: bool
) -> PairedTest:
    """Test whether ``first`` is better than ``second``, both by seed, from the differences of the
    seeds they share.

    One-sided: the paired t-test, and exact flips of the differences' signs. A missing value among
    the shared seeds, or fewer than two of these, gives NaN. If all differences are equal,
    only the flips are a test.
    """
    seeds = [seed for seed in first if seed in second]
    differences = [difference(first[seed], second[seed]) for seed in seeds]
    finite = sum(map(math.isfinite, differences))
    reason = ""
    if finite < len(seeds):
        reason = f"{len(seeds) - finite} of {len(seeds)} pairs of a seed have a missing value"
    elif finite < 2:
        reason = f"{finite} seed(s) in common, pairs need 2"
    # A seed that diverged is no seed to leave out: the test would be of the survivors.
    if reason:
        return PairedTest(finite, reason=reason)
    sample = summarize(differences)
    values = [side[seed] for side in (first, second) for seed in seeds]
    # What rounding leaves of equal differences would be a spread, and its t enormous.
    mean = without_rounding(sample.mean, *values)
    error = without_rounding(sample.sd, *values) / math.sqrt(finite)
    if error == 0:
        reason = NO_SPREAD if mean else "all differences are zero"
    sign = 1 if higher_is_better else -1
    return PairedTest(
        finite,
        mean,
        error,
        t_ratio(mean, error),
        one_sided_p(mean, error, finite - 1, higher_is_better),
        *interval(mean, error, finite - 1),
        sign_flip_p([sign * each for each in differences], finite * rounding_of(*values)),
        2.0**-finite,
        *(bootstrap_interval(differences) if error > 0 else (math.nan, math.nan)),
        reason=reason,
    )


def mean_difference(
    first: Mapping[int, float], second: Mapping[int, float]
) -> tuple[Sample, float, float]:
    """Return the mean of first minus second over the seeds that both have, and its two-sided
    interval by Student's t; nothing is tested.

    The interval is NaN for one seed and for equal differences; with a missing value all is NaN.
    """
    sample = summarize([difference(first[seed], second[seed]) for seed in first if seed in second])
    return (sample, *mean_interval(sample))


def sign_flip_p(differences: Sequence[float], rounding: float) -> float:
    """Return the one-sided p-value of a permutation test: how often random signs give a sum as
    large as ours.

    Sums that differ by no more than ``rounding`` are ties.

    Under the null hypothesis each difference is as likely as its negative. Up to ``MAX_FLIPPED``
    seeds, every choice of signs is counted; beyond, ``N_DRAWN`` are drawn, and ours with them.
    """
    values = np.array(differences)
    return float(np.mean(_signs(len(values)) @ values >= values.sum() - rounding))


@cache
def _signs(n: int) -> Floats:
    """Return all choices of ``n`` signs, or some and no change of any, one a row, of shape
    (choices, n)."""
    if n <= MAX_FLIPPED:
        return np.array(list(product((1.0, -1.0), repeat=n)))
    return np.vstack(
        [np.random.default_rng(RANDOM_SEED).choice((1.0, -1.0), (N_DRAWN, n)), np.ones(n)]
    )


@cache
def _resamples(n: int) -> tuple[Floats, Floats]:
    """Return how often each of ``n`` values is in each resample, of shape (resamples, n), and their
    probabilities."""
    if n > MAX_RESAMPLED:
        counts = (
            np.random.default_rng(RANDOM_SEED)
            .multinomial(n, [1 / n] * n, size=N_DRAWN)
            .astype(float)
        )
        return counts, np.full(N_DRAWN, 1 / N_DRAWN)
    chosen = list(combinations_with_replacement(range(n), n))
    counts = np.array([np.bincount(places, minlength=n) for places in chosen], dtype=float)
    ways = [
        math.factorial(n) / math.prod(map(math.factorial, row))
        for row in counts.astype(int).tolist()
    ]
    return counts, np.array(ways) / n**n


def bootstrap_interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the percentile interval at ``LEVEL`` of the mean over resampled seeds (Efron 1979).

    Up to ``MAX_RESAMPLED`` seeds, every resample is counted with its probability; beyond,
    ``N_DRAWN`` are drawn. With three seeds, one value thrice has probability 1/27 > 2.5 %, so
    the interval goes from the smallest to the largest.
    """
    counts, probabilities = _resamples(len(differences))
    means = counts @ differences / len(differences)
    return _quantile(means, probabilities), -_quantile(-means, probabilities)


def _quantile(values: Floats, probabilities: Floats) -> float:
    """Return the smallest value up to which there is a probability of (1 - ``LEVEL``) / 2."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(probabilities[order]) >= (1 - LEVEL) / 2
    return float(values[order[np.argmax(reached)]])
