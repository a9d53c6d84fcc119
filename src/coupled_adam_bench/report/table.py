"""The content of a printed table as plain text, which all renderers share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from coupled_adam_bench.page.blocks import Cell
from coupled_adam_bench.page.formats import (
    Shorthand,
    paddings,
    shorthand,
    significant,
)
from coupled_adam_bench.report import table_notes
from coupled_adam_bench.results.facts import Fact
from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.sample import summarize
from coupled_adam_bench.results.study_results import LOSS, StudyResults
from coupled_adam_bench.study.catalogue.metrics import Metric
from coupled_adam_bench.study.catalogue.tables import Table


@dataclass(frozen=True)
class Value:
    """A number as it is printed; ``padding`` characters behind it align the means of its column.

    ``values`` are those of the seeds, unrounded, where the renderers show or write them.
    ``reason`` says why the values cannot be compared, or is empty.
    """

    number: Shorthand
    bold: bool = False
    padding: int = 0
    values: tuple[float, ...] = ()
    reason: str = ""

    @property
    def text(self) -> str:
        """The whole number."""
        return str(self.number)

    @property
    def missing(self) -> bool:
        """Whether there is no number."""
        return self.number.missing

    @property
    def exact(self) -> str:
        """What cannot be compared and why, and the mean, the standard deviation and the values of
        the seeds in more digits, for readers who want to see them."""
        sample = summarize(self.values)
        numbers = ", ".join(significant(value, 6) for value in self.values)
        if len(self.values) > 1:
            numbers = f"seeds: {numbers}"
        if len(self.values) > 1 and not math.isnan(sample.mean):
            sd = significant(sample.sd)
            numbers = f"mean {significant(sample.mean, 6)}, standard deviation {sd}, {numbers}"
        return f"{self.reason}; {numbers}" if self.reason else numbers


@dataclass(frozen=True)
class Row:
    """A line: tokens, size and optimizer as they are printed and as what they are, and the value in
    every column."""

    tokens: str
    size: str
    label: str
    n_tokens: int
    n_params: int
    optimizer: str
    cells: tuple[Value, ...]


@dataclass(frozen=True)
class PrintedTable:
    """A table whose text is plain; each renderer escapes it. ``declaration`` says what it fits into
    on paper."""

    declaration: Table
    name: str
    title: str
    study: str
    caption: str
    columns: tuple[Metric, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def groups(self) -> list[list[list[Row]]]:
        """The rows of as many tokens together, and among these those of a size."""
        groups = []
        for _, of_tokens in groupby(self.rows, key=lambda row: row.n_tokens):
            sizes = groupby(of_tokens, key=lambda row: row.size)
            groups.append([list(of_size) for _, of_size in sizes])
        return groups


def aligned(rows: Sequence[Sequence[Value]]) -> list[tuple[Value, ...]]:
    """Return the rows of a table with the padding that aligns each column."""
    columns = []
    for column in zip(*rows, strict=True):
        columns.append(paddings([value.number for value in column]))
    found = []
    for index, row in enumerate(rows):
        pairs = zip(row, columns, strict=True)
        found.append(tuple(replace(value, padding=column[index]) for value, column in pairs))
    return found


def aligned_cells(rows: Sequence[Sequence[tuple[Sequence[float], int]]]) -> list[list[Cell]]:
    """Return the cells of samples over seeds, each with its digits: means with standard deviations,
    aligned."""
    values = []
    for row in rows:
        values.append([Value(shorthand(summarize(sample), digits)) for sample, digits in row])
    cells = []
    for line in aligned(values):
        cells.append([Cell(value.text, padding=value.padding) for value in line])
    return cells


MEANS_NOTE = (
    "Mean and sample standard deviation over seeds: 0.123 (4) means 0.123 ± 0.004. Where a value is"
    " missing (-), at least one seed has none: its run diverged, lacks an evaluation, or has an"
    " undefined metric."
)


_LONGEST = 1000
"""From here on a number of a run that is worse than guessing is printed in two digits, so that its
row is as wide as others."""


def _value(fact: Fact, has_failed: bool) -> Value:
    """Return a fact as it is printed; the run ``has_failed`` if its loss is worse than guessing."""
    number = shorthand(fact.sample, fact.metric.digits)
    if has_failed and abs(fact.sample.mean) >= _LONGEST:
        number = Shorthand(significant(fact.sample.mean, 2))
    if fact.is_worse_than_guessing:
        number = replace(number, mean=number.mean + table_notes.WORSE)
    return Value(number, fact.bold, values=tuple(fact.by_seed.values()), reason=fact.reason)


def _values(
    study: StudyResults, group: Group, key: str, columns: Sequence[Metric]
) -> tuple[Value, ...]:
    has_failed = study.facts[group.place, LOSS.name][key].is_worse_than_guessing
    facts = [study.facts[group.place, metric.name][key] for metric in columns]
    return tuple(_value(fact, has_failed) for fact in facts)


def _facts(study: StudyResults, name: str, columns: Sequence[Metric]) -> list[Fact]:
    """Return the facts of some columns of a table, group by group."""
    found: list[Fact] = []
    for group in study.layout.groups[name]:
        for metric in columns:
            found += study.facts[group.place, metric.name].values()
    return found


def _measured_columns(study: StudyResults, name: str) -> tuple[Metric, ...]:
    """Return the columns of a table that any run has a value of; all if none has one."""
    columns = study.layout.columns(name)
    measured = []
    for metric in columns:
        if any(fact.is_measured for fact in _facts(study, name, [metric])):
            measured.append(metric)
    return tuple(measured) or columns


def _build(study: StudyResults, declaration: Table) -> PrintedTable:
    name, plan = declaration.name, study.layout.plan
    groups, columns = study.layout.groups[name], _measured_columns(study, name)
    # All rows are aligned together, since they stand below each other.
    values = iter(
        aligned([_values(study, group, key, columns) for group in groups for key in group.cells])
    )
    rows = tuple(
        Row(
            group.tokens_label,
            group.model_label,
            label,
            group.n_tokens,
            group.setup.n_params,
            key,
            next(values),
        )
        for group in groups
        for key, label in group.optimizer_labels.items()
    )
    facts, losses = _facts(study, name, columns), _facts(study, name, [LOSS])
    left_out = [metric for metric in study.layout.columns(name) if metric not in columns]
    notes = (
        table_notes.seed_note(groups),
        table_notes.bold_note(declaration, plan.statistics.bold),
        *table_notes.edge_notes(losses, len(groups)),
        *table_notes.best_notes(facts, columns),
        *table_notes.held_out_notes(facts),
        *table_notes.guessing_notes(losses),
        *table_notes.missing_notes(facts, left_out),
        f"Protocol: {plan.protocol_label}.",
    )
    caption = table_notes.caption(plan, groups)
    return PrintedTable(
        declaration, name, declaration.title, plan.name, caption, columns, rows, notes
    )


def build_tables(study: StudyResults) -> tuple[PrintedTable, ...]:
    """Return the tables of a study, as its facts have them."""
    return tuple(_build(study, declaration) for declaration in study.layout.tables.values())
