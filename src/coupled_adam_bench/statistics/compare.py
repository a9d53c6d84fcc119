"""``results.csv`` to ``tests.csv``: who is better, in which metric, and what is printed bold.

In every group (table, n_params, n_tokens) and metric the optimizer with the best mean is compared
with each of the others: no other one can be significantly better than all. Values are compared
unrounded. If a metric is best at a value, all columns are about the distances from
it. The rules:

``t-test`` (comparisons ``pair`` and ``each_other``): bold if significantly better than every other
value of its column, as in the paper's Tables 1 and 7 [P]. ``statistics.bold`` of the study may
choose ``paired t-test`` or ``paired t-test, Holm`` instead. ``better`` (comparison
``single_runs``): bold if better; no test, as in the paper's Table 2 [P].

The direction of a test follows the data, so of two equal optimizers one is bold in 10 % of the
cases, not in 5 %: the paper's rule, kept. All other tests of a comparison stand beside it, for
information. The corrections know that the data choose what is compared: they are over the two-sided
tests of all pairs of optimizers in all groups and metrics of a table, and a row has the corrected
p-value of its own pair. Where a correction decides, it is that of the paired test: ``p_holm`` and
``p_bh`` are of Student's test, which holds only where seeds spread alike under all optimizers.

A missing run is never averaged away: an optimizer with some of its values missing has no mean and
keeps the others from being bold, since nothing shows that they are better; one without any value is
no value of the column. Nor is a value bold by a comparison without a test, as of two accuracies
that are each the same with all seeds.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from pandas import DataFrame

from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.results.tidy import typed_frame
from coupled_adam_bench.statistics.declared import Statistic
from coupled_adam_bench.statistics.pairs import (
    TWO_SIDED_PAIRED,
    Row,
    compare_all,
    correct,
)
from coupled_adam_bench.statistics.student import ALPHA
from coupled_adam_bench.study.catalogue.metrics import Metric
from coupled_adam_bench.study.settings.execution import BoldRule

TEST_COLUMNS: dict[str, type] = {
    "table": str,
    "n_params": int,
    "n_tokens": int,
    "metric": str,
    "optimizer": str,
    "reference": str,
    "n": int,
    "n_reference": int,
    "mean": float,
    "mean_reference": float,
    "sd": float,
    "sd_reference": float,
    "difference": float,
    "t": float,
    "df": float,
    "p_value": float,
    "significant": bool,
    "p_holm": float,
    "hedges_g": float,
    "p_welch": float,
    "rule": str,
    "reason": str,
    "bold": bool,
    "model": str,
    "data": str,
    "recipe": str,
    "low": float,
    "high": float,
    "p_bh": float,
    "n_pairs": int,
    "paired_difference": float,
    "t_paired": float,
    "p_paired": float,
    "paired_low": float,
    "paired_high": float,
    "p_paired_holm": float,
    "p_permutation": float,
    "p_permutation_min": float,
    "bootstrap_low": float,
    "bootstrap_high": float,
    "margin": float,
    "p_equivalence": float,
    "p_equivalence_paired": float,
    "paired_reason": str,
}
"""Columns of tests.csv; ``bold`` says whether tables print the value of ``optimizer`` bold
(docs/statistics.md)."""


DECIDED_P, DECIDED_IN, N_TESTS = "p_decided", "decided_in", "n_tests"
"""The corrected p-value that decides a comparison, the table over which it is corrected, and its
number of tests: no columns of tests.csv."""


@dataclass(frozen=True)
class Rule:
    """What decides in a tested table: its name in tests.csv, the column of its p-value, and its
    name in print."""

    name: str
    column: str
    says: str


RULES: dict[BoldRule, Rule] = {
    "paper": Rule(
        "t-test", "p_value", "one-sided Student's t-test of the unrounded values, pooled variance"
    ),
    "paired": Rule(
        "paired t-test",
        "p_paired",
        "one-sided t-test of the unrounded differences between runs of the same seed",
    ),
    "holm": Rule(
        "paired t-test, Holm",
        DECIDED_P,
        "two-sided t-test of the unrounded differences between runs of the same seed, Holm's"
        " correction over the table",
    ),
}
"""The rule of a tested table by the setting ``statistics.bold``."""
DECIDING = {rule.name: rule.column for rule in RULES.values()}
"""The column whose p-value decides, by ``rule``; without a test there is none."""


def _is_bold(rows: list[Row]) -> bool:
    """Tell whether the best value is better than all others that are there, by the rule of each
    comparison."""
    rivals = [row for row in rows if row["n_reference"] > 0]
    return bool(rivals) and all(map(_is_beaten, rivals))


def _is_beaten(row: Row) -> bool:
    """Tell whether the best value is better than another one, by the rule of their comparison."""
    if row["rule"] in DECIDING:
        return bool(row["significant"])
    return bool(abs(row["difference"]) > 0)


def _decide(rows: list[Row], rule: str) -> None:
    """Add what ``rule`` decides to the comparisons of one best mean."""
    for row in rows:
        row.setdefault("rule", rule)
        row["significant"] = row["rule"] in DECIDING and row[DECIDING[row["rule"]]] < ALPHA
    bold = _is_bold(rows)
    for row in rows:
        row["bold"] = bold


def _cells_of(group: Group, row: Row) -> frozenset[tuple[str, ...]]:
    """Return the cells of the two optimizers of a comparison, which tell whether it is the same in
    another table."""
    return frozenset((group.ids[row["optimizer"]], group.ids[row["reference"]]))


def compared(study: StudyResults) -> list[tuple[Group, Metric, list[Row]]]:
    """Return all pairs of optimizers by group and metric of a study's tables, with what is decided;
    those of the best mean are first.

    A correction is over the tests of a table. A comparison of the same runs that several tables
    have is decided in the first of them, so that it has one outcome.
    """
    settings = study.plan.statistics
    found: list[tuple[Group, Metric, list[Row]]] = []
    first: dict[tuple[str, frozenset[tuple[str, ...]]], Row] = {}
    for name, groups in study.layout.groups.items():
        table = study.layout.tables[name]
        of_table: list[tuple[Group, Metric, list[Row]]] = []
        for group in groups:
            for metric in (study.layout.metrics[column] for column in table.columns):
                margin = settings.margins.get(metric.name, math.nan)
                facts = study.at(group, metric)
                scores = {key: dict(fact.scores) for key, fact in facts.items()}
                rows = compare_all(scores, metric, table.rules.tested, margin)
                for row in rows:
                    row["reason"] = facts[row["optimizer"]].lacks_best or row["reason"]
                of_table.append((group, metric, rows))
        every = [row for _, _, rows in of_table for row in rows]
        correct(every)
        n_tests = sum(math.isfinite(row[TWO_SIDED_PAIRED]) for row in every)
        for group, metric, rows in of_table:
            for row in rows:
                here = {DECIDED_P: row["p_paired_holm"], DECIDED_IN: name, N_TESTS: n_tests}
                key = metric.name, _cells_of(group, row)
                row |= first.setdefault(key, here) if table.rules.tested else here
            _decide(_of_best(rows), RULES[settings.bold].name)
        found += of_table
    return found


def _of_best(rows: list[Row]) -> list[Row]:
    """Return the comparisons of the best mean, which are first among all pairs."""
    return [row for row in rows if row["optimizer"] == rows[0]["optimizer"]]


def _rows(study: StudyResults) -> Iterator[Row]:
    """Yield the comparisons of the best mean of each group and metric, from what was decided of the
    study if that is there."""
    found: list[tuple[Group, list[Row]]] = []
    if study.decided is None:
        found = [(group, rows) for group, _, rows in compared(study)]
    else:
        for name, groups in study.layout.groups.items():
            for group, column in product(groups, study.layout.tables[name].columns):
                comparisons = study.decided.comparisons[group.place, column]
                found.append((group, [dict(each.row) for each in comparisons if each.row]))
    for group, rows in found:
        for row in _of_best(rows):
            yield group.columns | row


def compare(study: StudyResults) -> DataFrame:
    """Return the comparisons of a study's tables, with the columns ``TEST_COLUMNS``."""
    return typed_frame(_rows(study), TEST_COLUMNS)


STATISTIC = Statistic(
    file="tests.csv",
    columns=TEST_COLUMNS,
    key=(*GROUP_COLUMNS, "metric", "optimizer", "reference"),
    rows=lambda material: _rows(material.study),
)
