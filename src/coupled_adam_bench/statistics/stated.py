"""The hypotheses of a stated plan, tested once with all stated seeds, and whether the plan was kept: ``stated.csv``.

A hypothesis about several places holds if it does at each of them: its p-value is the largest of theirs, which needs no
correction (Berger 1982).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from markupsafe import Markup

from coupled_adam_bench.report.blocks import Block, Cell, Column, Fold, Grid, Heading, Text, symbol
from coupled_adam_bench.report.formats import p_value as p_text
from coupled_adam_bench.report.formats import significant
from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group
from coupled_adam_bench.results.pairs import paired_values
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.corrections import holm
from coupled_adam_bench.statistics.declared import PLACE, Field, Material, Row, Section, Statistic
from coupled_adam_bench.statistics.regression import TOKENS, trend_of, upper_tail
from coupled_adam_bench.statistics.stated_plan import Check, in_advance, meant_groups, plan_checks
from coupled_adam_bench.statistics.student import one_sided_p, statistic
from coupled_adam_bench.statistics.t_test import t_test
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.stated import Hypothesis, StatedPlan

CONFIRMED, NOT_CONFIRMED, OPEN = "confirmed", "not confirmed", "not yet decided"
"""What becomes of a hypothesis."""
TONES = {CONFIRMED: "good", NOT_CONFIRMED: "bad", OPEN: "middle"}
CORRECTIONS = {"none": "without correction", "holm": "after Holm's correction", "bonferroni": "shared by Bonferroni"}
_KEPT = {"yes": "good", "no": "bad", "open": "middle"}
_NOT_IN_ADVANCE = (
    ", and so are the hypotheses below, since the record does not show that they were stated before the first run had "
    "begun"
)


@dataclass(frozen=True)
class PlaceTest:
    """The test of a hypothesis at one place; ``reason`` says why there is none."""

    difference: float
    t: float
    df: float
    p_value: float
    reason: str


def place_test(study: StudyResults, group: Group, hypothesis: Hypothesis, seeds: Sequence[int]) -> PlaceTest:
    """Return the stated test with the stated seeds, which must all have both values."""
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


def level_of(plan: StatedPlan) -> float:
    """Return the level that p is compared with."""
    return plan.alpha / (len(plan.hypotheses) if plan.correction == "bonferroni" else 1)


def outcome_of(p_value: float, level: float, others_open: bool = False) -> str:
    """Return what becomes of a hypothesis with a p-value, NaN where it could not be tested.

    ``others_open`` says that a hypothesis of the same correction is not tested yet, which can still help this one.
    """
    if math.isnan(p_value):
        return OPEN
    if p_value < level:
        return CONFIRMED
    return OPEN if others_open else NOT_CONFIRMED


def _largest(tests: Sequence[PlaceTest]) -> float:
    return math.nan if any(math.isnan(test.p_value) for test in tests) else max(test.p_value for test in tests)


def stated_rows(study: StudyResults) -> Iterator[dict[str, Any]]:
    """Yield the rows of stated.csv of a study that has a stated plan."""
    assert study.plan.stated is not None
    plan = study.plan.stated.plan
    level = level_of(plan)
    groups = [meant_groups(study.layout, hypothesis) for hypothesis in plan.hypotheses]
    tests = [_tests(study, *each, plan.seeds) for each in zip(groups, plan.hypotheses, strict=True)]
    p_values = [_largest(of_hypothesis) for of_hypothesis in tests]
    others_open = False
    if plan.correction == "holm":
        others_open = any(map(math.isnan, p_values))
        # What is not tested yet counts as 1, which can only be too careful.
        adjusted = holm([1.0 if math.isnan(p) else p for p in p_values])
        p_values = [math.nan if math.isnan(p) else holms for p, holms in zip(p_values, adjusted, strict=True)]
    for hypothesis, places, of_hypothesis, p_value in zip(plan.hypotheses, groups, tests, p_values, strict=True):
        of_all = {
            "hypothesis": hypothesis.name, "metric": hypothesis.metric, "better": hypothesis.better,
            "than": hypothesis.than, "test": hypothesis.test, "seeds": len(plan.seeds), "p_hypothesis": p_value,
            "level": level, "outcome": outcome_of(p_value, level, others_open),
        }  # fmt: skip
        for group, test in zip(places, of_hypothesis, strict=True):
            yield of_all | dict(zip(GROUP_COLUMNS, group.place, strict=True)) | vars(test)


@dataclass(frozen=True)
class HypothesisRow:
    """A hypothesis and its outcome, as text; ``places`` are (place, difference, p)."""

    name: str
    metric: Metric
    better: str
    than: str
    where: str
    test: str
    seeds: str
    p_value: str
    level: str
    outcome: str
    places: tuple[tuple[str, str, str], ...]
    reason: str


def _hypothesis(study: StudyResults, hypothesis: Hypothesis, rows: Sequence[Row]) -> HypothesisRow:
    places = {group.place: group for group in meant_groups(study.layout, hypothesis)}
    labels = next(iter(places.values())).optimizer_labels
    where = [study.tables[hypothesis.table].title, *filter(None, (hypothesis.tokens, hypothesis.model))]
    named = {(group.setup.n_params, group.n_tokens, group.setup): group for group in places.values()}
    shown = []
    for (n_params, n_tokens, _), group in named.items():
        row = next(
            r for r in rows if (r["n_params"], r["n_tokens"], r["model"]) == (n_params, n_tokens, group.setup.model)
        )
        shown.append(
            (
                f"D = {group.tokens_label}, N = {group.model_label}",
                significant(row["difference"]),
                p_text(row["p_value"]),
            )
        )
    return HypothesisRow(
        name=hypothesis.name,
        metric=study.layout.metrics[hypothesis.metric],
        better=labels[hypothesis.better],
        than=labels[hypothesis.than],
        where=", ".join(where) + (f": all of {len(places)} places" if len(places) > 1 else ""),
        test={"t-test": "unpaired", "paired": "paired", "trend": "trend"}[hypothesis.test],
        seeds=str(rows[0]["seeds"]),
        p_value=p_text(rows[0]["p_hypothesis"]),
        level=significant(rows[0]["level"]),
        outcome=rows[0]["outcome"],
        places=tuple(shown),
        reason="; ".join(dict.fromkeys(row["reason"] for row in rows if row["reason"])),
    )


_HYPOTHESES: tuple[Column[HypothesisRow], ...] = (
    Column("Hypothesis", lambda row: row.name, "row"),
    Column("Outcome", lambda row: Cell(row.outcome, f"status {TONES[row.outcome]}")),
    Column(Markup("<i>p</i>"), lambda row: row.p_value, "number"),
    Column("level", lambda row: row.level, "number"),
    Column("Metric", lambda row: symbol(row.metric)),
    Column("Better", lambda row: row.better),
    Column("than", lambda row: row.than),
    Column("Where", lambda row: row.where),
    Column("Test", lambda row: row.test),
    Column("seeds", lambda row: row.seeds, "number"),
    Column("Remark", lambda row: row.reason, "wrap"),
)
_PLACES: tuple[Column[tuple[str, str, str, str]], ...] = (
    Column("Hypothesis", lambda row: row[0], "row"),
    Column("Place", lambda row: row[1]),
    Column("difference", lambda row: row[2], "number"),
    Column(Markup("<i>p</i>"), lambda row: row[3], "number"),
)
_CHECKS: tuple[Column[Check], ...] = (
    Column("The plan", lambda check: check.subject, "row"),
    Column("Kept", lambda check: Cell(check.kept, f"status {_KEPT[check.kept]}")),
    Column("Found", lambda check: check.finding, "wrap"),
)


def _blocks(material: Material) -> Iterator[Block]:
    stated = material.plan.stated
    if stated is None:
        return
    plan, all_rows, kept = stated.plan, material.rows(STATISTIC), plan_checks(material)
    of_each = {each.name: [row for row in all_rows if row["hypothesis"] == each.name] for each in plan.hypotheses}
    hypotheses = [_hypothesis(material.study, each, of_each[each.name]) for each in plan.hypotheses]
    yield Text(
        Markup(
            "{}This study has a stated plan, <code>{}</code>, with the SHA-256 <code>{}</code>: one-sided tests at "
            "{}{}, with seeds {}. Everything else in this report is exploratory, whatever it is called there{}. All "
            'tests of the plan are in <a href="../stated.csv">stated.csv</a>.'
        ).format(
            f"{plan.title}. " if plan.title else "",
            stated.path,
            stated.sha256,
            f"{100 * plan.alpha:g} %",
            f", {CORRECTIONS[plan.correction]}" if len(plan.hypotheses) > 1 else "",
            ", ".join(map(str, plan.seeds)),
            "" if in_advance(kept) else _NOT_IN_ADVANCE,
        )
    )
    yield Grid("Hypotheses", _HYPOTHESES, hypotheses)
    places = [(row.name, *place) for row in hypotheses for place in row.places]
    yield Fold("By place", [Grid("Hypotheses by place", _PLACES, places, tall=True)])
    yield Heading("Was the plan followed?")
    yield Grid("Was the plan followed?", _CHECKS, kept)


STATISTIC = Statistic(
    file="stated.csv",
    columns={"hypothesis": Field(str, "name of the hypothesis, which has a line for each place")}
    | PLACE
    | {
        "metric": Field(str, "name of the metric"),
        "better": Field(str, "key of the optimizer that is to be better"),
        "than": Field(str, "key of the other one"),
        "test": Field(str, "the stated test"),
        "seeds": Field(int, "stated seeds"),
        "difference": Field(float, "difference; of a trend, what each doubling of tokens adds", "the metric's"),
        "t": Field(float, "its t"),
        "df": Field(float, "its degrees of freedom"),
        "p_value": Field(float, "one-sided p of the place"),
        "p_hypothesis": Field(float, "largest p of the places, after Holm's correction if that is stated"),
        "level": Field(float, "what the p of the hypothesis is compared with"),
        "outcome": Field(str, "what becomes of the hypothesis"),
        "reason": Field(str, "why a number is missing"),
    },
    key=("hypothesis", *GROUP_COLUMNS),
    rows=lambda material: stated_rows(material.study),
    section=Section("stated", "Stated in advance", _blocks),
)
