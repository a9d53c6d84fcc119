"""Lines through paired differences over the sizes of a study: one within each seed, and Student's t over the seeds.

The model of a table, a metric and two optimizers, over all seeds s, tokens D and parameters N that have both values:
``difference = a_s + b_s log2 D + c_s log2 N + noise``, a line for each seed. The mean b is what a doubling of D adds.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.pairs import paired_values, rivals
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.study.catalog.metrics import Metric

CENTRE, TOKENS, PARAMETERS = "centre", "tokens", "parameters"
"""Terms: the difference at the mean log D and log N, and what each doubling of tokens or of parameters adds to it."""
CONFIDENCE = 0.95
"""Coverage of all intervals."""


@dataclass(frozen=True)
class Fit:
    """The mean of the lines of ``n_seeds`` seeds: its first estimate is the value at the centre, the others are slopes.

    ``covariance`` is that of the estimates, with ``df`` degrees of freedom. ``centre`` are the means of the covariates.
    Without a fit, ``reason`` says why, and all numbers but ``n_seeds`` are NaN.
    """

    estimates: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    df: float
    centre: tuple[float, ...]
    n_seeds: int
    reason: str

    def standard_error(self, index: int) -> float:
        """Return the standard error of an estimate."""
        return math.sqrt(self.covariance[index][index])


def t_quantile(df: float) -> float:
    """Return half the width of a two-sided interval of ``CONFIDENCE`` in standard errors."""
    return float(stdtrit(df, (1 + CONFIDENCE) / 2))


def upper_tail(estimate: float, standard_error: float, df: float) -> float:
    """Return the one-sided p-value of an estimate above 0; without any error it is 0, 1 or, for an estimate of 0, 1."""
    if standard_error > 0:
        return float(stdtr(df, -estimate / standard_error))
    return math.nan if math.isnan(estimate) else float(estimate <= 0)


def no_fit(n_slopes: int, n_seeds: int, reason: str) -> Fit:
    """Return a fit that says why there is none."""
    nans = (math.nan,) * (1 + n_slopes)
    return Fit(nans, (nans,) * len(nans), math.nan, nans[1:], n_seeds, reason)


def fit_line(values: Sequence[float], covariates: Sequence[Sequence[float]], seeds: Sequence[int]) -> Fit:
    """Fit ``values`` of shape (n) by ``covariates`` of shape (n, slopes): a line within each seed, by least squares.

    The spread is that of the seeds' lines, so it holds whatever the values of a seed have in common: an effect, a slope
    or the trunk of their schedule. Intervals are exact for normal noise if all seeds have the same covariates. A seed
    whose values do not determine a line is left out.
    """
    y, slopes = np.asarray(values, dtype=float), np.asarray(covariates, dtype=float).reshape(len(values), -1)
    centre = slopes.mean(axis=0)
    design = np.column_stack([np.ones(len(y)), slopes - centre])
    n_slopes = slopes.shape[1]
    if np.linalg.matrix_rank(design) <= n_slopes:
        return no_fit(n_slopes, 0, "tokens and parameters vary together only")
    of_seeds = [np.asarray(seeds) == seed for seed in dict.fromkeys(seeds)]
    fits = [np.linalg.lstsq(design[of_seed], y[of_seed], rcond=None) for of_seed in of_seeds]
    lines = np.array([line for line, _, rank, _ in fits if rank > n_slopes])
    if len(lines) < 2:
        return no_fit(n_slopes, len(lines), f"{len(lines)} seed(s) with places enough for a line, their spread needs 2")
    covariance = np.atleast_2d(np.cov(lines, rowvar=False)) / len(lines)
    return Fit(
        estimates=tuple(lines.mean(axis=0).tolist()),
        covariance=tuple(map(tuple, covariance.tolist())),
        df=len(lines) - 1.0,
        centre=tuple(centre.tolist()),
        n_seeds=len(lines),
        reason="",
    )


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

    def line(self, n_params: float) -> tuple[float, float, float, float, float]:
        """Return the line against log2 D for one size: value at D = 1, slope, their variances and covariance."""
        at = {TOKENS: 0.0, PARAMETERS: math.log2(n_params)}
        weights = [1.0, *(at[term] - mean for term, mean in zip(self.terms, self.fit.centre, strict=True))]
        cov, slope = self.fit.covariance, 1 + self.terms.index(TOKENS)
        value = sum(w * b for w, b in zip(weights, self.fit.estimates, strict=True))
        variance = sum(w * v * cov[i][j] for i, w in enumerate(weights) for j, v in enumerate(weights))
        covariance = sum(w * cov[i][slope] for i, w in enumerate(weights))
        return value, self.fit.estimates[slope], variance, cov[slope][slope], covariance

    def predicted(self, n_params: float, n_tokens: float) -> tuple[float, float]:
        """Return the fitted difference and half the width of its 95 % interval."""
        value, slope, variance, slope_variance, covariance = self.line(n_params)
        x = math.log2(n_tokens)
        squared_error = variance + 2 * x * covariance + x * x * slope_variance
        return value + slope * x, t_quantile(self.fit.df) * math.sqrt(max(squared_error, 0.0))


def trends(study: StudyResults, table: str, metrics: Sequence[Metric]) -> list[Trend]:
    """Return the fitted lines of a table that has several numbers of tokens or sizes, by data, recipe and pair."""
    families: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in study.groups[table]:
        families[group.setup.data, group.setup.recipe].append(group)
    found = []
    for groups in families.values():
        pairs = Counter(pair for group in groups for pair in rivals(group))
        several = [pair for pair, n_groups in pairs.items() if n_groups > 1]
        found += [trend_of(study, groups, metric, *pair) for metric in metrics for pair in several]
    return found


def trend_of(
    study: StudyResults,
    groups: Sequence[Group],
    metric: Metric,
    optimizer: str,
    reference: str,
    among: Sequence[int] | None = None,
) -> Trend:
    """Return the line through groups of the same data and recipe, over all seeds or those ``among`` these."""
    shared = [group for group in groups if {optimizer, reference} <= group.cells.keys()]
    sizes = {TOKENS: {group.n_tokens for group in shared}, PARAMETERS: {group.setup.n_params for group in shared}}
    terms = tuple(term for term, values in sizes.items() if len(values) > 1)
    values: list[float] = []
    places: list[list[float]] = []
    seeds: list[int] = []
    n_missing = 0
    for group in shared:
        pair = paired_values(study, group, metric, optimizer, reference)
        wanted = pair.seeds if among is None else among
        differences = {seed: pair.differences[seed] for seed in wanted if seed in pair.differences}
        n_missing += len(wanted) - len(differences)
        logs = {TOKENS: math.log2(group.n_tokens), PARAMETERS: math.log2(group.setup.n_params)}
        for seed, difference in differences.items():
            values.append(difference)
            places.append([logs[term] for term in terms])
            seeds.append(seed)
    fit = fit_line(values, places, seeds) if values else no_fit(len(terms), 0, "no pair has both values")
    return Trend(tuple(shared), metric, optimizer, reference, terms, fit, len(values), n_missing)
