"""The hypotheses of a stated plan, tested once with all stated seeds, and whether the plan was
kept: ``stated.csv``.

A hypothesis about several places holds if it does at each of them: its p-value is the largest of
theirs, which needs no correction (Berger 1982).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from coupled_adam_bench.page.blocks import (
    Block,
    Cell,
    Column,
    Grid,
    Heading,
    Kind,
    P,
    Text,
    listed,
    symbol,
)
from coupled_adam_bench.page.formats import p_value, significant
from coupled_adam_bench.results.groups import GROUP_COLUMNS, PLACE
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import Material, Row, Section, Statistic
from coupled_adam_bench.statistics.place_tests import tests_of
from coupled_adam_bench.statistics.preregistered import Check, in_advance, meant_groups, plan_checks
from coupled_adam_bench.statistics.student import holm
from coupled_adam_bench.study.plan.preregistration import Hypothesis

CONFIRMED, NOT_CONFIRMED, OPEN = "confirmed", "not confirmed", "not yet decided"
"""What becomes of a hypothesis."""
TONES = {CONFIRMED: "good", NOT_CONFIRMED: "bad", OPEN: "middle"}
CORRECTIONS = {
    "none": "without correction",
    "holm": "after Holm's correction",
    "bonferroni": "shared by Bonferroni",
}
_KEPT = {"yes": "good", "no": "bad", "open": "middle"}
_NOT_IN_ADVANCE = (
    ", and so are the hypotheses below, since the record does not show that they were stated before"
    " the first run had begun"
)


def hypothesis_outcome(p: float, level: float, others_open: bool = False) -> str:
    """Return what becomes of a hypothesis with a p-value, NaN where it could not be tested.

    ``others_open`` says that a hypothesis of the same correction is not tested yet, which can still
    help this one.
    """
    if math.isnan(p):
        return OPEN
    if p < level:
        return CONFIRMED
    return OPEN if others_open else NOT_CONFIRMED


def stated_rows(study: StudyResults) -> Iterator[dict[str, Any]]:
    """Yield the rows of stated.csv of a study that has a stated plan."""
    assert study.plan.stated is not None
    plan = study.plan.stated.plan
    level = plan.alpha / (len(plan.hypotheses) if plan.correction == "bonferroni" else 1)
    groups = [meant_groups(study.layout, hypothesis) for hypothesis in plan.hypotheses]
    tests = [
        tests_of(study, *each, plan.seeds) for each in zip(groups, plan.hypotheses, strict=True)
    ]
    p_values: list[float] = []
    for of_hypothesis in tests:
        # One place that waits for values leaves the hypothesis open; one whose values do not vary
        # cannot confirm it.
        found = [test.p_value for test in of_hypothesis]
        largest = 1.0 if any(map(math.isnan, found)) else max(found)
        is_open = any(test.is_open for test in of_hypothesis)
        p_values.append(math.nan if is_open else largest)
    others_open = False
    if plan.correction == "holm":
        are_open = np.isnan(p_values)
        others_open = bool(are_open.any())
        # What is not tested yet counts as 1, which can only be too careful.
        adjusted = holm(np.where(are_open, 1.0, p_values).tolist())
        p_values = np.where(are_open, math.nan, adjusted).tolist()
    for hypothesis, places, of_hypothesis, p in zip(
        plan.hypotheses, groups, tests, p_values, strict=True
    ):
        of_all = {
            "hypothesis": hypothesis.name,
            "metric": hypothesis.metric,
            "better": hypothesis.better,
            "than": hypothesis.than,
            "test": hypothesis.test,
            "seeds": len(plan.seeds),
            "p_hypothesis": p,
            "level": level,
            "outcome": hypothesis_outcome(p, level, others_open),
        }
        for group, test in zip(places, of_hypothesis, strict=True):
            yield of_all | group.columns | vars(test)


def _line(study: StudyResults, hypothesis: Hypothesis, rows: Sequence[Row]) -> list[str | Cell]:
    places, first = meant_groups(study.layout, hypothesis), rows[0]
    labels = places[0].optimizer_labels
    where = [
        study.layout.tables[hypothesis.table].title,
        *filter(None, (hypothesis.tokens, hypothesis.model)),
    ]
    # A hypothesis holds only if it does at each of its places, so their number belongs to it.
    named_places = ", ".join(where)
    if len(places) > 1:
        named_places += f": all of {len(places)} places"
    test: str = "unpaired" if hypothesis.test == "t-test" else hypothesis.test
    if hypothesis.margin is not None:
        test += f", margin {hypothesis.margin:g}"
    return [
        hypothesis.name,
        Cell(first["outcome"], f"status {TONES[first['outcome']]}"),
        p_value(first["p_hypothesis"], first["level"]),
        significant(first["level"]),
        symbol(study.layout.metrics[hypothesis.metric]),
        labels[hypothesis.better],
        labels[hypothesis.than],
        named_places,
        test,
        str(first["seeds"]),
        "; ".join(dict.fromkeys(row["reason"] for row in rows if row["reason"])),
    ]


_HYPOTHESES: tuple[tuple[str, Kind], ...] = (
    ("Hypothesis", "row"),
    ("Outcome", "text"),
    P,
    ("level", "number"),
    ("Metric", "text"),
    ("Better", "text"),
    ("than", "text"),
    ("Where", "text"),
    ("Test", "text"),
    ("seeds", "number"),
    ("Remark", "wrap"),
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
    hypotheses = []
    for hypothesis in plan.hypotheses:
        rows = [row for row in all_rows if row["hypothesis"] == hypothesis.name]
        hypotheses.append(_line(material.study, hypothesis, rows))
    title = f"{plan.title}. " if plan.title else ""
    # One hypothesis has nothing to be corrected for, whatever correction the plan names.
    correction = f", {CORRECTIONS[plan.correction]}" if len(plan.hypotheses) > 1 else ""
    also_exploratory = "" if in_advance(kept) else _NOT_IN_ADVANCE
    yield Text(
        Markup(
            "{}This study has a stated plan, <code>{}</code>, with the SHA-256 <code>{}</code>:"
            " one-sided tests at {}{}, with seeds {}. Everything else in this report is"
            " exploratory, whatever it is called there{}. All tests of the plan, place by place,"
            ' are in <a href="../stated.csv">stated.csv</a>.'
        ).format(
            title,
            stated.path,
            stated.sha256,
            f"{100 * plan.alpha:g} %",
            correction,
            ", ".join(map(str, plan.seeds)),
            also_exploratory,
        )
    )
    yield Grid("Hypotheses", listed(*_HYPOTHESES), hypotheses)
    yield Heading("Was the plan followed?")
    yield Grid("Was the plan followed?", _CHECKS, kept)


STATISTIC = Statistic(
    file="stated.csv",
    columns={"hypothesis": str}
    | PLACE
    | {
        "metric": str,
        "better": str,
        "than": str,
        "test": str,
        "seeds": int,
        "difference": float,
        "t": float,
        "df": float,
        "p_value": float,
        "p_hypothesis": float,
        "level": float,
        "outcome": str,
        "reason": str,
    },
    key=("hypothesis", *GROUP_COLUMNS),
    rows=lambda material: stated_rows(material.study),
    section=Section("stated", "Stated in advance", _blocks),
)
