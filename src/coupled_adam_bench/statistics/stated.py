"""The hypotheses of a stated plan, tested at the stated looks: ``results.csv`` to ``stated.csv``.

A hypothesis about several places holds if it does at each of them: its p-value is the largest of theirs, which needs no
correction (Berger 1982). The looks go on until one decides, and no look counts that comes after.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group, Layout
from coupled_adam_bench.results.pairs import paired_values
from coupled_adam_bench.results.study_results import StudyResults, load_results
from coupled_adam_bench.results.tidy import read_csv, typed_frame, write_csv
from coupled_adam_bench.statistics.corrections import holm
from coupled_adam_bench.statistics.regression import upper_tail
from coupled_adam_bench.statistics.sequential import nominal_levels
from coupled_adam_bench.statistics.student import one_sided_p, statistic
from coupled_adam_bench.statistics.t_test import t_test
from coupled_adam_bench.statistics.trend import TOKENS, trend_of
from coupled_adam_bench.study.config.stated import Hypothesis, StatedPlan
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.stated import is_meant

if TYPE_CHECKING:
    from pandas import DataFrame

CONFIRMED, EARLY, NOT_CONFIRMED, OPEN = "confirmed", "confirmed, stopped early", "not confirmed", "not yet decided"
"""What becomes of a hypothesis."""
STATED_COLUMNS: dict[str, type] = {
    "hypothesis": str, "table": str, "n_params": int, "n_tokens": int, "model": str, "data": str, "recipe": str,
    "metric": str, "better": str, "than": str, "test": str, "look": int, "seeds": int, "difference": float,
    "t": float, "df": float, "p_value": float, "p_hypothesis": float, "level": float, "outcome": str, "reason": str,
}  # fmt: skip
"""Columns of stated.csv: a line for each hypothesis, look and place.

``p_value`` is that of the place; ``p_hypothesis``, the largest over the places, after Holm's correction if that is
stated, is compared with ``level``. The ``difference`` of a trend is what each doubling of tokens adds. ``outcome`` is
that of the hypothesis, the same in all its lines.
"""


@dataclass(frozen=True)
class PlaceTest:
    """The test of a hypothesis at one place with the seeds of one look; ``reason`` says why there is none."""

    difference: float
    t: float
    df: float
    p_value: float
    reason: str


def meant_groups(layout: Layout, hypothesis: Hypothesis) -> list[Group]:
    """Return the places that a hypothesis is about."""
    keys = {hypothesis.better, hypothesis.than}
    return [
        group
        for group in layout.groups[hypothesis.table]
        if keys <= group.cells.keys() and is_meant(hypothesis, group.table, group.cells[hypothesis.better][0])
    ]


def place_test(study: StudyResults, group: Group, hypothesis: Hypothesis, seeds: Sequence[int]) -> PlaceTest:
    """Return the stated test with some seeds, which must all have both values."""
    metric, keys = study.layout.metrics[hypothesis.metric], (hypothesis.better, hypothesis.than)
    pair = paired_values(study, group, metric, *keys)
    found = dict(zip(pair.seeds, zip(pair.firsts, pair.seconds, strict=True), strict=True))
    nan = math.nan
    first, second = ([found.get(seed, (nan, nan))[index] for seed in seeds] for index in (0, 1))
    reasons = []
    for key, sample in zip(keys, (first, second), strict=True):
        if lost := [str(seed) for seed, value in zip(seeds, sample, strict=True) if not math.isfinite(value)]:
            reasons.append(f"{key}: no value of seed {', '.join(lost)}")
    if reasons:
        return PlaceTest(nan, nan, nan, nan, "; ".join(reasons))
    if hypothesis.test == "paired":
        return _paired([a - b for a, b in zip(first, second, strict=True)], metric.higher_is_better)
    test = t_test(first, second, metric.higher_is_better, (hypothesis.better, hypothesis.than))
    return PlaceTest(test.difference, test.t, test.df, test.p_value, test.reason)


def _paired(differences: Sequence[float], higher_is_better: bool) -> PlaceTest:
    """Return the one-sided paired t-test; without any spread p is 0 or 1."""
    mean, error = fmean(differences), stdev(differences) / math.sqrt(len(differences))
    df = len(differences) - 1.0
    t = statistic(mean, error)
    return PlaceTest(
        mean, t, df, one_sided_p(t, df, higher_is_better), "" if error > 0 else "all differences are equal"
    )


def trend_tests(
    study: StudyResults, places: Sequence[Group], hypothesis: Hypothesis, seeds: Sequence[int]
) -> list[PlaceTest]:
    """Return for each place the test that the gain grows with tokens; places of the same data and recipe share it."""
    metric = study.layout.metrics[hypothesis.metric]
    sign = 1 if metric.higher_is_better else -1
    found: dict[tuple[str, str], PlaceTest] = {}
    for family in dict.fromkeys((group.setup.data, group.setup.recipe) for group in places):
        groups = [group for group in places if (group.setup.data, group.setup.recipe) == family]
        trend = trend_of(study, groups, metric, hypothesis.better, hypothesis.than, seeds)
        reason = (
            f"{trend.n_missing} of {trend.n + trend.n_missing} pairs missing" if trend.n_missing else trend.fit.reason
        )
        if TOKENS not in trend.terms:
            reason = "one number of tokens"
        if reason:
            found[family] = PlaceTest(math.nan, math.nan, math.nan, math.nan, reason)
            continue
        index = 1 + trend.terms.index(TOKENS)
        slope, error, df = trend.fit.estimates[index], trend.fit.standard_error(index), trend.fit.df
        t = slope / error if error > 0 else math.nan
        found[family] = PlaceTest(slope, t, df, upper_tail(sign * slope, error, df), "")
    return [found[group.setup.data, group.setup.recipe] for group in places]


def _tests(
    study: StudyResults, places: Sequence[Group], hypothesis: Hypothesis, seeds: Sequence[int]
) -> list[PlaceTest]:
    if hypothesis.test == "trend":
        return trend_tests(study, places, hypothesis, seeds)
    return [place_test(study, group, hypothesis, seeds) for group in places]


def levels(plan: StatedPlan) -> list[float]:
    """Return the level that p is compared with at each look."""
    alpha = plan.alpha / (len(plan.hypotheses) if plan.correction == "bonferroni" else 1)
    return nominal_levels(plan.looks, alpha, plan.stopping.spending) if plan.stopping else [alpha]


def outcome_of(p_values: Sequence[float], of_looks: Sequence[float], others_open: bool = False) -> str:
    """Return what becomes of a hypothesis with a p-value at each look, NaN where it could not be tested.

    ``others_open`` says that a hypothesis of the same correction is not tested yet, which can still help this one.
    """
    for number, (p_value, level) in enumerate(zip(p_values, of_looks, strict=True), start=1):
        if math.isnan(p_value):
            return OPEN
        if p_value < level:
            return CONFIRMED if number == len(of_looks) else EARLY
    return OPEN if others_open else NOT_CONFIRMED


def _largest(tests: Sequence[PlaceTest]) -> float:
    return math.nan if any(math.isnan(test.p_value) for test in tests) else max(test.p_value for test in tests)


def stated_rows(study: StudyResults) -> "DataFrame":
    """Return stated.csv of a study that has a stated plan."""
    assert study.plan.stated is not None
    plan = study.plan.stated.plan
    of_looks = levels(plan)
    groups = [meant_groups(study.layout, hypothesis) for hypothesis in plan.hypotheses]
    tests = [
        [_tests(study, places, hypothesis, plan.seeds[:look]) for look in plan.looks]
        for hypothesis, places in zip(plan.hypotheses, groups, strict=True)
    ]
    p_values = [[_largest(at_look) for at_look in of_hypothesis] for of_hypothesis in tests]
    others_open = False
    if plan.correction == "holm" and len(plan.hypotheses) > 1:  # with one look
        known = [p for (p,) in p_values]
        others_open = any(map(math.isnan, known))
        # What is not tested yet counts as 1, which can only be too careful.
        adjusted = holm([1.0 if math.isnan(p) else p for p in known])
        p_values = [[math.nan if math.isnan(p) else holms] for p, holms in zip(known, adjusted, strict=True)]
    rows: list[dict[str, Any]] = []
    for hypothesis, places, of_hypothesis, of_p in zip(plan.hypotheses, groups, tests, p_values, strict=True):
        outcome = outcome_of(of_p, of_looks, others_open)
        rows += [
            dict(zip(GROUP_COLUMNS, group.place, strict=True)) | vars(test) | {
                "hypothesis": hypothesis.name, "metric": hypothesis.metric, "better": hypothesis.better,
                "than": hypothesis.than, "test": hypothesis.test, "look": number, "seeds": look,
                "p_hypothesis": p_value, "level": level, "outcome": outcome,
            }
            for number, (look, at_look, p_value, level) in enumerate(
                zip(plan.looks, of_hypothesis, of_p, of_looks, strict=True), start=1
            )
            for group, test in zip(places, at_look, strict=True)
        ]  # fmt: skip
    return typed_frame(rows, STATED_COLUMNS)


def read_stated_csv(path: Path) -> "DataFrame":
    """Read ``stated.csv``; ``ValueError`` for a wrong column, a value of the wrong type or a duplicate row."""
    return read_csv(path, STATED_COLUMNS, ("hypothesis", "look", *GROUP_COLUMNS))


def write_stated(plan: Plan, results_csv: Path, out: Path) -> None:
    """Write ``stated.csv`` from ``results.csv``; ``ValueError`` for a study without a stated plan."""
    if plan.stated is None:
        raise ValueError(f"stated: {plan.name} has no stated plan; name its file in the study")
    write_csv(stated_rows(load_results(plan, results_csv)), out)
