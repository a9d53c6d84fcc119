"""Lines through the differences of two optimizers: how they change with tokens and parameters.

The model of a table, a metric and two optimizers, over all seeds s, tokens D and parameters N that
have both values, is a line for each seed: ``difference = a_s + b_s log2 D + c_s log2 N + noise``.
The mean b is what a doubling of D adds; it has a one-sided t-test over the seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.sample import rounding_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.student import one_sided_p
from coupled_adam_bench.study.catalogue.metrics import Metric

Floats = NDArray[np.float64]
TOKENS, PARAMETERS = "tokens", "parameters"
"""Terms: what each doubling of tokens or of parameters adds to the difference."""


@dataclass(frozen=True)
class Fit:
    """The mean of the lines of ``n_seeds`` seeds: its first estimate is the value at the centre,
    the others are slopes.

    ``covariance`` is that of the estimates, with ``df`` degrees of freedom. ``centre`` are the
    means of the covariates. Without a fit, ``reason`` says why, and all numbers but ``n_seeds`` are
    NaN.
    """

    estimates: Floats
    covariance: Floats
    df: float
    centre: Floats
    n_seeds: int
    reason: str

    def standard_error(self, index: int) -> float:
        """Return the standard error of an estimate."""
        return math.sqrt(self.covariance[index][index])


def upper_tail(estimate: float, standard_error: float, df: float) -> float:
    """Return the one-sided p-value of an estimate above 0; without any error it is 1 for an
    estimate of 0, and else NaN."""
    return one_sided_p(estimate, standard_error, df, higher=True)


def _no_fit(n_slopes: int, n_seeds: int, reason: str) -> Fit:
    nans = np.full(1 + n_slopes, math.nan)
    return Fit(nans, np.tile(nans, (len(nans), 1)), math.nan, nans[1:], n_seeds, reason)


def fit_line(
    values: Sequence[float], covariates: Sequence[Sequence[float]], seeds: Sequence[int]
) -> Fit:
    """Fit ``values`` of shape (n) by ``covariates`` of shape (n, slopes): a line within each seed,
    by least squares.

    The spread is that of the seeds' lines, so it holds whatever the values of a seed have in
    common: an effect, a slope or the trunk of their schedule. Intervals are exact for normal noise
    if all seeds have the same covariates. A seed whose values do not determine a line is left out.
    """
    y, slopes = (
        np.asarray(values, dtype=float),
        np.asarray(covariates, dtype=float).reshape(len(values), -1),
    )
    centre = slopes.mean(axis=0)
    design = np.column_stack([np.ones(len(y)), slopes - centre])
    n_slopes = slopes.shape[1]
    if np.linalg.matrix_rank(design) <= n_slopes:
        return _no_fit(n_slopes, 0, "tokens and parameters vary together only")
    of_seeds = [np.asarray(seeds) == seed for seed in dict.fromkeys(seeds)]
    fits = [np.linalg.lstsq(design[of_seed], y[of_seed], rcond=None) for of_seed in of_seeds]
    lines = np.array([line for line, _, rank, _ in fits if rank > n_slopes])
    lines[np.abs(lines) <= rounding_of(*y)] = 0.0  # equal differences have no slope
    if len(lines) < 2:
        return _no_fit(
            n_slopes,
            len(lines),
            f"{len(lines)} seed(s) with places enough for a line, their spread needs 2",
        )
    covariance = np.atleast_2d(np.cov(lines, rowvar=False)) / len(lines)
    # What rounding leaves of equal lines would be a spread, and its t enormous.
    is_equal = np.ptp(lines, axis=0) <= rounding_of(*y)
    covariance[is_equal, :] = 0.0
    covariance[:, is_equal] = 0.0
    return Fit(lines.mean(axis=0), covariance, len(lines) - 1.0, centre, len(lines), "")


@dataclass(frozen=True)
class Trend:
    """The fitted line of a table's groups that have the same data and recipe."""

    groups: tuple[Group, ...]
    metric: Metric
    optimizer: str
    reference: str
    terms: tuple[str, ...]
    """What the line depends on: ``TOKENS``, ``PARAMETERS``, both, or nothing."""
    fit: Fit
    n: int
    n_missing: int


def trend_of(
    study: StudyResults,
    groups: Sequence[Group],
    metric: Metric,
    optimizer: str,
    reference: str,
    among: Sequence[int] | None = None,
) -> Trend:
    """Return the line through groups of the same data and recipe, over all seeds or those ``among``
    these."""
    shared = [group for group in groups if {optimizer, reference} <= group.cells.keys()]
    logs = [
        {TOKENS: math.log2(group.n_tokens), PARAMETERS: math.log2(group.setup.n_params)}
        for group in shared
    ]
    # What is the same in all groups has no slope.
    terms: tuple[str, ...] = ()
    for each in (TOKENS, PARAMETERS):
        if len({of_group[each] for of_group in logs}) > 1:
            terms += (each,)
    points: list[tuple[float, list[float], int]] = []
    n_missing = 0
    for group, of_group in zip(shared, logs, strict=True):
        facts = study.at(group, metric)
        found = facts[optimizer].minus(facts[reference])
        for seed in found if among is None else among:
            difference = found.get(seed, math.nan)
            if math.isfinite(difference):
                points.append((difference, [of_group[term] for term in terms], seed))
            else:  # a plan's test needs all of its pairs, so it has to know
                n_missing += 1
    fit = (
        fit_line(*zip(*points, strict=True))
        if points
        else _no_fit(len(terms), 0, "no pair has both values")
    )
    return Trend(tuple(shared), metric, optimizer, reference, terms, fit, len(points), n_missing)
