"""The hypotheses of a stated plan, tested once with all stated seeds, and whether the plan was kept: ``stated.csv``.

A hypothesis about several places holds if it does at each of them: its p-value is the largest of theirs, which needs no
correction (Berger 1982).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from pandas import DataFrame

from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group, Layout
from coupled_adam_bench.results.pairs import paired_values
from coupled_adam_bench.results.study_results import StudyResults, load_results
from coupled_adam_bench.results.tidy import read_csv, typed_frame, write_csv
from coupled_adam_bench.statistics.corrections import holm
from coupled_adam_bench.statistics.regression import TOKENS, trend_of, upper_tail
from coupled_adam_bench.statistics.student import one_sided_p, statistic
from coupled_adam_bench.statistics.t_test import t_test
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.stated import Hypothesis, StatedPlan, is_meant

CONFIRMED, NOT_CONFIRMED, OPEN = "confirmed", "not confirmed", "not yet decided"
"""What becomes of a hypothesis."""
STATED_COLUMNS: dict[str, type] = {
    "hypothesis": str, "table": str, "n_params": int, "n_tokens": int, "model": str, "data": str, "recipe": str,
    "metric": str, "better": str, "than": str, "test": str, "seeds": int, "difference": float,
    "t": float, "df": float, "p_value": float, "p_hypothesis": float, "level": float, "outcome": str, "reason": str,
}  # fmt: skip
"""Columns of stated.csv: a line for each hypothesis and place.

``p_value`` is that of the place; ``p_hypothesis``, the largest over the places, after Holm's correction if that is
stated, is compared with ``level``. The ``difference`` of a trend is what each doubling of tokens adds. ``outcome`` is
that of the hypothesis, the same in all its lines.
"""
Record = Sequence[Mapping[str, Any]]
"""What the workflow has seen of a stated plan, as ``stated.read_record`` returns it."""


@dataclass(frozen=True)
class PlaceTest:
    """The test of a hypothesis at one place; ``reason`` says why there is none."""

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


def stated_rows(study: StudyResults) -> DataFrame:
    """Return stated.csv of a study that has a stated plan."""
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
    rows: list[dict[str, Any]] = []
    for hypothesis, places, of_hypothesis, p_value in zip(plan.hypotheses, groups, tests, p_values, strict=True):
        of_all = {
            "hypothesis": hypothesis.name, "metric": hypothesis.metric, "better": hypothesis.better,
            "than": hypothesis.than, "test": hypothesis.test, "seeds": len(plan.seeds), "p_hypothesis": p_value,
            "level": level, "outcome": outcome_of(p_value, level, others_open),
        }  # fmt: skip
        rows += [
            of_all | dict(zip(GROUP_COLUMNS, group.place, strict=True)) | vars(test)
            for group, test in zip(places, of_hypothesis, strict=True)
        ]
    return typed_frame(rows, STATED_COLUMNS)


def read_stated_csv(path: Path) -> DataFrame:
    """Read ``stated.csv``; ``ValueError`` for a wrong column, a value of the wrong type or a duplicate row."""
    return read_csv(path, STATED_COLUMNS, ("hypothesis", *GROUP_COLUMNS))


def write_stated(plan: Plan, results_csv: Path, out: Path) -> None:
    """Write ``stated.csv`` from ``results.csv``; ``ValueError`` for a study without a stated plan."""
    if plan.stated is None:
        raise ValueError(f"stated: {plan.name} has no stated plan; name its file in the study")
    write_csv(stated_rows(load_results(plan, results_csv)), out)


@dataclass(frozen=True)
class Check:
    """What a plan asks for, whether it was kept (``open``: not known, or not yet), and what was found."""

    subject: str
    kept: Literal["yes", "no", "open"]
    finding: str


def seeds_with_values(study: StudyResults) -> tuple[list[int], list[int]]:
    """Return the seeds that have a value of any stated comparison, and those of them that have all values."""
    assert study.plan.stated is not None
    found: dict[int, list[bool]] = {}
    n_values = 0
    for hypothesis in study.plan.stated.plan.hypotheses:
        for group in meant_groups(study.layout, hypothesis):
            for key in (hypothesis.better, hypothesis.than):
                n_values += 1
                for cell in group.cells[key]:
                    found.setdefault(cell.seed, []).append(math.isfinite(study.value(cell, hypothesis.metric)))
    some = [seed for seed, there in found.items() if any(there)]
    return some, [seed for seed in some if sum(found[seed]) == n_values]


def _alike(record: Record, sha256: str) -> list[Mapping[str, Any]]:
    """Return the entries with this text whose runs have the settings of the last of them, whatever their seeds."""
    seen = [entry for entry in record if entry["sha256"] == sha256]
    return [entry for entry in seen if _settings(entry) == _settings(seen[-1])]


def _settings(entry: Mapping[str, Any]) -> set[str]:
    return set(entry["cells"].values())


def _in_advance(record: Record, sha256: str) -> Check:
    subject = "stated in advance"
    alike = _alike(record, sha256)
    if not alike:
        return Check(subject, "open", "it is not recorded when this text was first seen; the workflow records it")
    first = alike[0]
    finding = (
        f"this text with these settings was first seen on {first['at']}, when {len(first['begun'])} of "
        f"{first['n_cells']} runs had begun"
    )
    of_text = [_settings(entry) for entry in record if entry["sha256"] == sha256]
    if any(settings != of_text[0] for settings in of_text):
        finding += "; settings changed after the plan was seen"
    if others := {entry["sha256"] for entry in record} - {sha256}:
        finding += f"; {len(others)} other text(s) of the plan were seen too"
    return Check(subject, "no" if first["begun"] else "yes", finding)


def _measured_alike(record: Record, sha256: str) -> Check:
    subject = "metrics unchanged"
    of_text = [entry for entry in record if entry["sha256"] == sha256]
    if not of_text:
        return Check(subject, "open", "it is not recorded how they were to be measured")
    n_before = sum(not entry["begun"] for entry in of_text)
    seen = [entry["measured"] for entry in of_text[max(0, n_before - 1) :]]
    changed = sorted({stage for entry in seen for stage in seen[0] | entry if entry.get(stage) != seen[0].get(stage)})
    if changed:
        return Check(subject, "no", f"settings or version of {', '.join(changed)} changed after this text was seen")
    return Check(subject, "yes", f"settings and version of {', '.join(seen[0])} are those of the time")


def _dropped(record: Record, sha256: str) -> list[str]:
    """Return the runs that had begun with these settings, and that the grid has no longer."""
    alike = _alike(record, sha256)
    return [
        name
        for name in dict.fromkeys(n for entry in alike for n in entry["cells"])
        if name in alike[-1]["begun"] and name not in alike[-1]["cells"]
    ]


def _seeds(stated: Sequence[int], some: Sequence[int], whole: Sequence[int], dropped: Sequence[str]) -> Check:
    subject = "these seeds and no others"
    if dropped:
        return Check(subject, "no", f"{', '.join(dropped)} had begun, and the grid no longer has them")
    if others := [seed for seed in some if seed not in stated]:
        return Check(subject, "no", f"seed {', '.join(map(str, others))} was run and is not stated")
    kept: Literal["yes", "open"] = "yes" if len(whole) == len(stated) else "open"
    return Check(subject, kept, f"{len(whole)} of {len(stated)} seeds have all values")


def checks(study: StudyResults, record: Record) -> tuple[Check, ...]:
    """Return whether each part of a stated plan was kept; ``record`` is what the workflow has seen of it."""
    stated = study.plan.stated
    assert stated is not None
    some, whole = seeds_with_values(study)
    return (
        _in_advance(record, stated.sha256),
        _measured_alike(record, stated.sha256),
        _seeds(stated.plan.seeds, some, whole, _dropped(record, stated.sha256)),
    )
