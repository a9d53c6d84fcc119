"""How the difference between two optimizers grows with tokens and parameters: ``trend.csv`` and ``crossings.csv``.

The model of a table, a metric and two optimizers, over all seeds s, tokens D and parameters N that have both values:
``difference = a_s + b_s log2 D + c_s log2 N + noise``, a line for each seed. The mean b is what a doubling of D adds.
The paper says that the gain of Coupled Adam in loss grows with D [P]: that is the one-sided t-test of b over seeds.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pandas import DataFrame

from coupled_adam_bench.results.groups import Group, Setup
from coupled_adam_bench.results.pairs import paired_values, rivals
from coupled_adam_bench.results.study_results import StudyResults, load_results
from coupled_adam_bench.results.tidy import read_csv, typed_frame, write_csv
from coupled_adam_bench.statistics.corrections import holm
from coupled_adam_bench.statistics.regression import Fit, fit_line, no_fit, t_quantile, upper_tail
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.plan import Plan

CENTRE, TOKENS, PARAMETERS = "centre", "tokens", "parameters"
"""Terms: the difference at the mean log D and log N, and what each doubling of tokens or of parameters adds to it."""
NO_CROSSING = "no crossing in the range"
TREND_COLUMNS: dict[str, type] = {
    "table": str, "data": str, "recipe": str, "metric": str, "optimizer": str, "reference": str, "term": str,
    "estimate": float, "se": float, "df": float, "low": float, "high": float, "p_value": float, "p_holm": float,
    "n": int, "n_missing": int, "n_seeds": int, "reason": str,
}  # fmt: skip
"""Columns of trend.csv; ``low`` and ``high`` are the 95 % interval, ``p_value`` is one-sided, for the optimizer."""
CROSSING_COLUMNS: dict[str, type] = {
    "table": str, "n_params": int, "model": str, "data": str, "recipe": str, "metric": str, "optimizer": str,
    "reference": str, "tokens": float, "low": float, "high": float, "reason": str,
}  # fmt: skip
"""Columns of crossings.csv; ``tokens`` is where the fitted difference is 0, between ``low`` and ``high`` at 95 %."""


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


def _rows(trend: Trend) -> list[dict[str, Any]]:
    """Return the rows of trend.csv on one line, without Holm's correction; a term that does not vary has NaN."""
    sign = 1 if trend.metric.higher_is_better else -1
    fit, setup = trend.fit, trend.groups[0].setup
    rows = []
    for term in (CENTRE, TOKENS, PARAMETERS):
        reasons = [fit.reason]
        if trend.n_missing:
            reasons.append(f"{trend.n_missing} of {trend.n + trend.n_missing} pairs missing")
        index = (CENTRE, *trend.terms).index(term) if term in (CENTRE, *trend.terms) else None
        if index is None:
            estimate = error = df = math.nan
            reasons.append(f"one number of {term}")
        else:
            estimate, error, df = fit.estimates[index], fit.standard_error(index), fit.df
        half = t_quantile(df) * error
        rows.append({
            "table": trend.groups[0].table, "data": setup.data, "recipe": setup.recipe, "metric": trend.metric.name,
            "optimizer": trend.optimizer, "reference": trend.reference, "term": term, "estimate": estimate,
            "se": error, "df": df, "low": estimate - half, "high": estimate + half,
            "p_value": upper_tail(sign * estimate, error, df), "n": trend.n, "n_missing": trend.n_missing,
            "n_seeds": fit.n_seeds, "reason": "; ".join(filter(None, reasons)),
        })  # fmt: skip
    return rows


def crossing(trend: Trend, n_params: int) -> tuple[float, float, float, str]:
    """Return the tokens at which the fitted difference is 0, the ends of the 95 % interval, and a reason for NaN.

    The interval is Fieller's (1954): all D at which the interval of the fitted difference holds 0. It may reach beyond
    the study's numbers of tokens; a crossing itself is given only between them.
    """
    nan = math.nan
    if trend.fit.reason or TOKENS not in trend.terms:
        return nan, nan, nan, trend.fit.reason or "one number of tokens"
    value, slope, variance, slope_variance, covariance = trend.line(n_params)
    tokens = [group.n_tokens for group in trend.groups]
    place = -value / slope if slope else nan
    if not math.log2(min(tokens)) <= place <= math.log2(max(tokens)):
        return nan, nan, nan, NO_CROSSING
    squared = t_quantile(trend.fit.df) ** 2
    # (value + slope x)^2 <= t^2 variance(x), a quadratic in x; it opens upwards if the slope differs from 0.
    a = slope**2 - squared * slope_variance
    if a <= 0:
        return 2**place, nan, nan, "the slope does not differ from 0, so the interval has no end"
    b, c = value * slope - squared * covariance, value**2 - squared * variance
    root = math.sqrt(max(b * b - a * c, 0.0))
    return 2**place, _tokens((-b - root) / a), _tokens((-b + root) / a), ""


def _tokens(log2: float) -> float:
    return 2.0**log2 if log2 < 1023 else math.inf


def _crossing_rows(trend: Trend) -> list[dict[str, Any]]:
    rows = []
    setups: dict[Setup, None] = dict.fromkeys(group.setup for group in trend.groups)
    for setup in setups:
        tokens, low, high, reason = crossing(trend, setup.n_params)
        rows.append({
            "table": trend.groups[0].table, **vars(setup), "metric": trend.metric.name, "optimizer": trend.optimizer,
            "reference": trend.reference, "tokens": tokens, "low": low, "high": high, "reason": reason,
        })  # fmt: skip
    return rows


def trend_rows(study: StudyResults) -> tuple[DataFrame, DataFrame]:
    """Return trend.csv and crossings.csv; Holm's correction is over the tests of a table on the same term."""
    rows: list[dict[str, Any]] = []
    crossings: list[dict[str, Any]] = []
    for name in study.tables:
        fitted = trends(study, name, study.columns(name))
        of_table = [row for trend in fitted for row in _rows(trend)]
        for term in (CENTRE, TOKENS, PARAMETERS):
            of_term = [row for row in of_table if row["term"] == term]
            for row, p_holm in zip(of_term, holm([row["p_value"] for row in of_term]), strict=True):
                row["p_holm"] = p_holm
        rows += of_table
        crossings += [row for trend in fitted for row in _crossing_rows(trend)]
    return typed_frame(rows, TREND_COLUMNS), typed_frame(crossings, CROSSING_COLUMNS)


def read_trend(folder: Path) -> tuple[DataFrame, DataFrame]:
    """Read ``trend.csv`` and ``crossings.csv`` of a folder."""
    pair = ("data", "recipe", "metric", "optimizer", "reference")
    return (
        read_csv(folder / "trend.csv", TREND_COLUMNS, ("table", *pair, "term")),
        read_csv(folder / "crossings.csv", CROSSING_COLUMNS, ("table", "n_params", "model", *pair)),
    )


def write_trend(plan: Plan, results_csv: Path, out: Path) -> None:
    """Write ``trend.csv`` and, beside it, ``crossings.csv`` from ``results.csv``."""
    rows, crossings = trend_rows(load_results(plan, results_csv))
    write_csv(rows, out)
    write_csv(crossings, out.with_name("crossings.csv"))
