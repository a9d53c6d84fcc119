"""What is decided of a study: every comparison once, with its outcome, and what tables print bold.

Two rules stand side by side. What is bold follows the rule of the table (``statistics.bold``,
by default the paper's). The outcome of a comparison is ours: the two-sided paired t-test at 5 %,
after Holm's correction over the tests of the table. Tables, figures, sentences and counts read
either from the facts, and compute neither.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from coupled_adam_bench.results.facts import CENTERED, Comparison, Outcome
from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.study_results import Decided, StudyResults
from coupled_adam_bench.statistics.compare import (
    DECIDED_IN,
    DECIDED_P,
    N_TESTS,
    TEST_COLUMNS,
    compared,
)
from coupled_adam_bench.statistics.paired import paired_test
from coupled_adam_bench.statistics.pairs import TWO_SIDED_PAIRED
from coupled_adam_bench.statistics.student import ALPHA, holm, two_sided_p
from coupled_adam_bench.study.catalogue.metrics import METRICS, Metric
from coupled_adam_bench.study.catalogue.names import ADAM

RATINGS = METRICS["r_bar"]
ASKED = tuple(METRICS[name] for name in ("loss", "loss_rarest", "isotropy", "r_bar"))
"""The metrics that the front of the report compares, also where a table has no column of them."""


def centered(key: str) -> str:
    """Return the name of a rival that is an optimizer whose embedding has its mean subtracted after
    training."""
    return f"{key}, minus its mean"


def outcome_of(metric: Metric, difference: float, p: float, p_corrected: float) -> Outcome:
    """Return the outcome of a comparison from its difference and its two-sided p-values, NaN where
    there is no test."""
    if math.isnan(p):
        return Outcome.UNTESTED
    if not p < ALPHA:
        return Outcome.OPEN
    is_better = (difference > 0) == metric.larger_wins
    if p_corrected < ALPHA:
        return Outcome.BETTER if is_better else Outcome.WORSE
    return Outcome.BETTER_UNCORRECTED if is_better else Outcome.WORSE_UNCORRECTED


_NO_NUMBERS = {name: math.nan for name, kind in TEST_COLUMNS.items() if kind is float}
"""What a comparison without a test has in place of its numbers."""


def _of_row(metric: Metric, row: Mapping[str, Any], titles: Mapping[str, str]) -> Comparison:
    """Return the comparison that a row of all pairs has."""
    row = {**_NO_NUMBERS, **row}
    found = Comparison(row["optimizer"], row["reference"], Outcome.UNTESTED, row=row)
    if math.isnan(row[TWO_SIDED_PAIRED]):
        reason = row["reason"] or row.get("paired_reason", "")
        return replace(found, n=row["n_pairs"], difference=row["difference"], reason=reason)
    p, p_corrected = row[TWO_SIDED_PAIRED], row[DECIDED_P]
    return replace(
        found,
        outcome=outcome_of(metric, row["paired_difference"], p, p_corrected),
        n=row["n_pairs"],
        difference=row["paired_difference"],
        low=row["paired_low"],
        high=row["paired_high"],
        p=p,
        p_corrected=p_corrected,
        n_tests=row[N_TESTS],
        decided_in=titles[row[DECIDED_IN]],
        p_equivalent=row["p_equivalence_paired"],
        reason=row["paired_reason"],
    )


def _tested(metric: Metric, key: str, rival: str, ours: Any, theirs: Any) -> Comparison:
    """Return a comparison that no column of a table has, not corrected yet."""
    test = paired_test(ours, theirs, metric.larger_wins)
    return Comparison(
        key,
        rival,
        Outcome.UNTESTED,
        test.n,
        test.difference,
        test.low,
        test.high,
        two_sided_p(test.p_value, test.t, test.n - 1),
        reason=test.reason,
    )


def _questions(study: StudyResults, group: Group) -> Iterator[tuple[Metric, Comparison, Any]]:
    """Yield the comparisons with the references of a group that no column of its table is about,
    each with the cells that tell it from others."""
    columns = study.layout.tables[group.table].columns
    adam = group.plain_keys.get(ADAM)
    for reference in group.references:
        for metric in ASKED:
            facts = study.at(group, metric)
            for key in group.cells:
                cells = group.ids[key], group.ids[reference]
                if key == reference:
                    continue
                if metric.name not in columns:
                    ours, theirs = facts[key].scores, facts[reference].scores
                    found = _tested(metric, key, reference, ours, theirs)
                    yield metric, found, frozenset(cells)
                if metric == RATINGS and reference == adam:
                    ours, theirs = facts[key].by_seed, facts[reference].without_mean
                    found = _tested(metric, key, centered(reference), ours, theirs)
                    yield metric, found, (*cells, CENTERED)


def _decided_questions(
    study: StudyResults,
) -> Iterator[tuple[Group, Metric, Comparison]]:
    """Yield the comparisons next to the columns of tables. The comparisons of a table are corrected
    together, each in the first table that has it."""
    first: dict[Any, Comparison] = {}
    for name, groups in study.layout.groups.items():
        table = study.layout.tables[name]
        if not table.rules.tested:
            continue
        asked = []
        for group in groups:
            pairs: set[Any] = set()
            for metric, found, cells in _questions(study, group):
                # Two references are compared once, not in both directions.
                if (metric.name, cells) not in pairs:
                    asked.append((group, metric, found, cells))
                pairs.add((metric.name, cells))
        corrected = holm([found.p for _, _, found, _ in asked])
        n_tests = sum(math.isfinite(found.p) for _, _, found, _ in asked)
        for (group, metric, found, cells), p in zip(asked, corrected, strict=True):
            outcome = outcome_of(metric, found.difference, found.p, p)
            decided = replace(
                found, outcome=outcome, p_corrected=p, n_tests=n_tests, decided_in=table.title
            )
            earlier = first.setdefault((metric.name, cells), decided)
            if earlier.optimizer != found.optimizer:
                earlier = earlier.reversed
            yield group, metric, replace(earlier, optimizer=found.optimizer, rival=found.rival)


def decide(study: StudyResults) -> StudyResults:
    """Return results whose facts say what is bold, and how each optimizer does against each
    other."""
    titles = {name: table.title for name, table in study.layout.tables.items()}
    comparisons: dict[tuple[tuple[Any, ...], str], list[Comparison]] = {}
    bold: dict[tuple[tuple[Any, ...], str], str | None] = {}
    for group, metric, rows in compared(study):
        place = group.place, metric.name
        comparisons[place] = [_of_row(metric, row, titles) for row in rows]
        is_bold = bool(rows) and rows[0]["bold"]
        bold[place] = rows[0]["optimizer"] if is_bold else None
    for group, metric, found in _decided_questions(study):
        comparisons.setdefault((group.place, metric.name), []).append(found)
    return replace(study, decided=Decided(comparisons, bold))
