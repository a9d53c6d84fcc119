"""What a study could have found, and how many seeds find what it saw: ``results.csv`` to ``power.csv``.

Power is that of the one-sided t-test at the paper's level [P]: unpaired, as the paper tests, and paired by seed. The
power of a test for the very difference that it saw is not given: it is a function of the p-value and says nothing more.
"""

import math
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group
from coupled_adam_bench.results.pairs import paired_values, rivals
from coupled_adam_bench.results.study_results import StudyResults, load_results
from coupled_adam_bench.results.tidy import read_csv, typed_frame, write_csv
from coupled_adam_bench.statistics.student import ALPHA
from coupled_adam_bench.statistics.t_test import summarize
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.plan import Plan

if TYPE_CHECKING:
    from pandas import DataFrame

POWER = 0.8
"""The probability with which a difference should be found: the usual one (Cohen 1988)."""
CAUTION = 0.8
"""The spread that ``seeds_cautious`` takes is this upper confidence limit of the one seen (Browne 1995)."""
MOST_SEEDS = 10_000
UNPAIRED, PAIRED = "unpaired", "paired"
DESIGNS = (UNPAIRED, PAIRED)
POWER_COLUMNS: dict[str, type] = {
    "table": str, "n_params": int, "n_tokens": int, "model": str, "data": str, "recipe": str, "metric": str,
    "optimizer": str, "reference": str, "design": str, "n": int, "difference": float, "sd": float,
    "detectable": float, "seeds": float, "seeds_cautious": float, "reason": str,
}  # fmt: skip
"""Columns of power.csv.

``n`` is the number of seeds (unpaired: of the optimizer that has fewer); ``sd`` that of one optimizer's values or, if
paired, of the differences; ``detectable`` the difference that so many seeds find with the probability ``POWER``;
``seeds`` how many of each optimizer find the ``difference`` seen, if the spread is ``sd``.
"""


def _degrees(n: int, design: str) -> int:
    return 2 * n - 2 if design == UNPAIRED else n - 1


def power_of(effect: float, n: int, design: str, alpha: float = ALPHA) -> float:
    """Return the power of the one-sided t-test with ``n`` seeds of each optimizer.

    ``effect`` is the true difference over the standard deviation of ``design``: of an optimizer's values, or of the
    paired differences. T has a noncentral distribution (Cohen 1988).
    """
    from scipy.special import nctdtr, stdtrit

    df = _degrees(n, design)
    shift = effect * math.sqrt(n / 2 if design == UNPAIRED else n)
    return float(1 - nctdtr(df, shift, stdtrit(df, 1 - alpha)))


@cache
def detectable_effect(n: int, design: str, power: float = POWER, alpha: float = ALPHA) -> float:
    """Return the effect that ``n`` seeds find with the probability ``power``; NaN for fewer than two seeds."""
    from scipy.optimize import brentq

    if n < 2:
        return math.nan
    high = 1.0
    while power_of(high, n, design, alpha) < power:
        high *= 2
    return float(brentq(lambda effect: power_of(effect, n, design, alpha) - power, 0.0, high, xtol=1e-12))


def seeds_needed(effect: float, design: str, power: float = POWER, alpha: float = ALPHA) -> float:
    """Return the fewest seeds, of each optimizer, with at least ``power``; NaN if ``MOST_SEEDS`` are too few."""
    if math.isnan(effect) or effect <= 0 or power_of(effect, MOST_SEEDS, design, alpha) < power:
        return math.nan
    low, high = 1, 2
    while power_of(effect, high, design, alpha) < power:
        low, high = high, min(2 * high, MOST_SEEDS)
    while high - low > 1:  # the power grows with the seeds
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(effect, middle, design, alpha) >= power else (middle, high)
    return float(high)


def cautious(sd: float, df: int) -> float:
    """Return the upper confidence limit ``CAUTION`` of a standard deviation, whose estimate has ``df``."""
    from scipy.special import chdtri

    return sd * math.sqrt(df / chdtri(df, CAUTION))


def _spread(
    study: StudyResults, group: Group, metric: Metric, pair: tuple[str, str], design: str
) -> tuple[int, float, float, int, str]:
    """Return seeds, difference, standard deviation with its degrees of freedom, and a reason for NaN."""
    nan = math.nan
    if design == PAIRED:
        paired = paired_values(study, group, metric, *pair)
        differences = list(paired.differences.values())
        n = len(differences)
        if paired.n_missing:
            return n, nan, nan, 0, f"{paired.n_missing} of {len(paired.seeds)} seeds without both values"
        if n < 2:
            return n, differences[0] if differences else nan, nan, 0, "one seed"
        return n, fmean(differences), stdev(differences), n - 1, ""
    values = study.samples(group, metric)
    samples = [summarize(values[key]) for key in pair]
    n = min(sample.n for sample in samples)
    if any(math.isnan(sample.mean) for sample in samples):
        return n, nan, nan, 0, "values missing"
    if n < 2:
        return n, samples[0].mean - samples[1].mean, nan, 0, "one seed"
    df = sum(sample.n - 1 for sample in samples)
    pooled = math.sqrt(sum((sample.n - 1) * sample.sd**2 for sample in samples) / df)
    return n, samples[0].mean - samples[1].mean, pooled, df, ""


def _row(study: StudyResults, group: Group, metric: Metric, pair: tuple[str, str], design: str) -> dict[str, Any]:
    n, difference, sd, df, reason = _spread(study, group, metric, pair, design)
    effect, careful = math.nan, math.nan
    if not reason and sd > 0:
        effect, careful = abs(difference) / sd, abs(difference) / cautious(sd, df)
    seeds = seeds_needed(effect, design)
    if not reason and sd == 0:
        reason = "all values of an optimizer are equal" if design == UNPAIRED else "all differences are equal"
    elif not reason and math.isnan(seeds):
        reason = "no difference" if difference == 0 else f"more than {MOST_SEEDS:,} seeds"
    return dict(zip(GROUP_COLUMNS, group.place, strict=True)) | {
        "metric": metric.name, "optimizer": pair[0], "reference": pair[1], "design": design, "n": n,
        "difference": difference, "sd": sd, "detectable": detectable_effect(n, design) * sd,
        "seeds": seeds, "seeds_cautious": seeds_needed(careful, design), "reason": reason,
    }  # fmt: skip


def power_rows(study: StudyResults) -> "DataFrame":
    """Return power.csv: each optimizer of a group against its first one, in each metric and design."""
    rows = [
        _row(study, group, metric, pair, design)
        for name, groups in study.groups.items()
        for group in groups
        for metric in study.columns(name)
        for pair in rivals(group)
        for design in DESIGNS
    ]
    return typed_frame(rows, POWER_COLUMNS)


def read_power(path: Path) -> "DataFrame":
    """Read ``power.csv``; ``ValueError`` for a wrong column, a value of the wrong type or a duplicate row."""
    return read_csv(path, POWER_COLUMNS, (*GROUP_COLUMNS, "metric", "optimizer", "reference", "design"))


def write_power(plan: Plan, results_csv: Path, out: Path) -> None:
    """Write ``power.csv`` from ``results.csv``."""
    write_csv(power_rows(load_results(plan, results_csv)), out)
