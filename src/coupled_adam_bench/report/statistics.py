"""The section on statistics: what survives corrections, equivalence, the same text under two models, and summaries."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.results.comparisons import ALL_SEEDS, AVERAGE, BETTER, DOCUMENTS, HELD_OUT
from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.student import ALPHA
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.catalog.tables import Table
from coupled_adam_bench.study.config.statistics import BoldRule

if TYPE_CHECKING:
    from pandas import DataFrame

Row = dict[Any, Any]
TESTS = {
    "p_value": "Student's t-test, as in the paper",
    "p_bh": "the same, two-sided, after Benjamini-Hochberg",
    "p_holm": "the same, two-sided, after Holm",
    "p_paired": "paired t-test",
    "p_paired_holm": "paired t-test, two-sided, after Holm",
}
"""The label of each p-value whose findings are counted."""
RULES: dict[BoldRule, str] = {
    "paper": "Student's t-test, the paper's",
    "paired": "the paired t-test",
    "holm": "Student's t-test, two-sided, after Holm's correction for all pairs of optimizers of the table",
}


@dataclass(frozen=True)
class Comparison:
    """A row of ``tests.csv`` with its group and metric."""

    group: Group
    metric: Metric
    row: Row

    @property
    def optimizers(self) -> tuple[str, str]:
        """The labels of the better optimizer and of the other."""
        labels = self.group.optimizer_labels
        return labels[self.row["optimizer"]], labels[self.row["reference"]]


@dataclass(frozen=True)
class Survivors:
    """What of a table's findings survives: ``counts`` by test of comparisons with p < 5 %, metric by metric.

    ``lost`` are the comparisons of bold values, of ``n_bold``, that are not significant after Holm's correction.
    """

    table: Table
    columns: tuple[Metric, ...]
    counts: tuple[tuple[str, tuple[int, ...]], ...]
    n_bold: int
    n_bold_bh: int
    n_bold_holm: int
    lost: tuple[Comparison, ...]


@dataclass(frozen=True)
class TextPair:
    """Two optimizers of a group on the same text: the loss, the mean accuracy, and that of each task.

    The rows are of ``paired.csv``, over all seeds where there are several. ``agreeing`` says at how many seeds the loss
    differs in the same direction as over all.
    """

    group: Group
    optimizers: tuple[str, str]
    loss: Row | None
    documents: Row | None
    tasks: tuple[Row, ...]
    agreeing: str


@dataclass(frozen=True)
class Summary:
    """The rows of ``summary.csv`` of a table: (label, row by metric) of each optimizer but the first."""

    table: Table
    columns: tuple[Metric, ...]
    optimizers: tuple[tuple[str, dict[str, Row]], ...]
    reference: str
    has_intervals: bool


@dataclass(frozen=True)
class StatisticsSection:
    """What the template prints."""

    rule: str
    comparisons: tuple[Comparison, ...]
    survivors: tuple[Survivors, ...]
    equivalence: tuple[Comparison, ...]
    text: dict[str, tuple[TextPair, ...]]
    gaps: tuple[str, ...]
    summaries: tuple[Summary, ...]
    alpha: float = ALPHA
    untested: str = BETTER


def _survivors(study: StudyResults, table: Table, comparisons: tuple[Comparison, ...]) -> Survivors:
    columns = study.columns(table.name)
    counts = tuple(
        (label, tuple(sum(c.row[name] < ALPHA for c in comparisons if c.metric is metric) for metric in columns))
        for name, label in TESTS.items()
    )
    bold: dict[Any, list[Comparison]] = {}
    for each in comparisons:
        if each.row["bold"]:
            bold.setdefault((each.group.place, each.metric.name), []).append(each)

    def surviving(name: str) -> int:
        # A value that is missing altogether keeps none from being bold, and has no test.
        return sum(all(c.row[name] < ALPHA or isnan(c.row[name]) for c in of_value) for of_value in bold.values())

    lost = tuple(c for of_value in bold.values() for c in of_value if c.row["p_holm"] >= ALPHA)
    n_bold = (len(bold), surviving("p_bh"), surviving("p_holm"))
    return Survivors(table, columns, counts, *n_bold, lost)


def _text_pairs(study: StudyResults, rows: dict[Any, list[Row]], name: str) -> Iterator[TextPair]:
    for group in study.groups[name]:
        labels = group.optimizer_labels
        for (optimizer, reference), found in _by(rows.get(group.place, []), "optimizer", "reference").items():
            seeds = {row["seed"] for row in found}
            shown = [row for row in found if row["seed"] == (ALL_SEEDS if ALL_SEEDS in seeds else min(seeds))]
            loss = next((row for row in shown if row["unit"] == HELD_OUT), None)
            losses = [row["difference"] for row in found if row["unit"] == HELD_OUT and row["seed"] != ALL_SEEDS]
            whole = loss["difference"] if loss else 0.0
            yield TextPair(
                group,
                (labels[optimizer], labels[reference]),
                loss,
                next((row for row in shown if row["unit"] == DOCUMENTS and row["task"] == AVERAGE), None),
                tuple(row for row in shown if row["unit"] == DOCUMENTS and row["task"] != AVERAGE),
                f"{sum(difference * whole > 0 for difference in losses)} of {len(losses)}",
            )


def _by(rows: list[Row], *names: str) -> dict[Any, list[Row]]:
    """Return rows by the values of columns."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


def _summary(study: StudyResults, table: Table, rows: list[Row]) -> Summary:
    labels = {key: label for group in study.groups[table.name] for key, label in group.optimizer_labels.items()}
    by_key = _by(rows, "optimizer")
    lines = tuple((labels[key], {row["metric"]: row for row in of_key}) for (key,), of_key in by_key.items())
    reference = next(iter(labels.values()))
    return Summary(table, study.columns(table.name), lines, reference, any(not isnan(row["low"]) for row in rows))


def statistics_section(study: StudyResults, paired: "DataFrame", summary: "DataFrame") -> StatisticsSection:
    """Return the section of a study, given the contents of ``paired.csv`` and ``summary.csv``."""
    comparisons = {
        name: tuple(
            Comparison(group, metric, dict(row))
            for group in groups
            for metric in study.columns(name)
            for row in study.comparisons_of(group, metric)
        )
        for name, groups in study.groups.items()
    }
    every = tuple(each for of_table in comparisons.values() for each in of_table)
    tested = [table for name, table in study.tables.items() if table.rules.tested and comparisons[name]]
    text_rows = _by(paired.to_dict("records"), *GROUP_COLUMNS)
    summary_rows = _by(summary.to_dict("records"), "table")
    reasons = dict.fromkeys(row["reason"] for rows in text_rows.values() for row in rows if isnan(row["p_value"]))
    return StatisticsSection(
        rule=RULES[study.plan.statistics.bold],
        comparisons=every,
        survivors=tuple(_survivors(study, table, comparisons[table.name]) for table in tested),
        equivalence=tuple(each for each in every if not isnan(each.row["margin"])),
        text={name: tuple(_text_pairs(study, text_rows, name)) for name in study.groups},
        gaps=tuple(reasons),
        summaries=tuple(
            _summary(study, table, summary_rows[(name,)])
            for name, table in study.tables.items()
            if (name,) in summary_rows
        ),
    )
