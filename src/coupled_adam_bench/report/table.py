"""The content of a printed table as plain text, which all renderers share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from coupled_adam_bench.page.formats import Shorthand, aligned, shorthand, significant
from coupled_adam_bench.report import table_notes
from coupled_adam_bench.results.facts import Fact
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.study.catalogue.metrics import LOSS, Metric
from coupled_adam_bench.study.catalogue.tables import Table


@dataclass(frozen=True)
class Value:
    """A fact with its number as it is printed."""

    number: Shorthand
    fact: Fact

    @property
    def text(self) -> str:
        """The whole number."""
        return str(self.number)

    @property
    def bold(self) -> bool:
        """Whether it is printed bold."""
        return self.fact.bold

    @property
    def exact(self) -> str:
        """What cannot be compared and why, and the mean, the standard deviation and the values of
        the seeds in more digits, for readers who want to see them."""
        sample, values = self.fact.sample, self.fact.by_seed.values()
        numbers = ", ".join(significant(value, 6) for value in values)
        if len(values) > 1:
            numbers = f"seeds: {numbers}"
        if len(values) > 1 and not math.isnan(sample.mean):
            sd = significant(sample.sd)
            numbers = f"mean {significant(sample.mean, 6)}, standard deviation {sd}, {numbers}"
        return f"{self.fact.reason}; {numbers}" if self.fact.reason else numbers


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
        """The rows with the same number of tokens together, and among these the rows with the same
        size of model."""
        groups = []
        for _, of_tokens in groupby(self.rows, key=lambda row: row.n_tokens):
            sizes = groupby(of_tokens, key=lambda row: row.size)
            groups.append([list(of_size) for _, of_size in sizes])
        return groups


_LONGEST = 1000
"""From here on a number of a run that is worse than guessing is printed in two digits, so that its
row is as wide as others."""


def _number(fact: Fact, has_failed: bool) -> Shorthand:
    """Return a fact as it is printed; the run ``has_failed`` if its loss is worse than guessing."""
    number = shorthand(fact.sample, fact.metric.digits)
    if has_failed and abs(fact.sample.mean) >= _LONGEST:
        number = Shorthand(significant(fact.sample.mean, 2))
    if fact.is_worse_than_guessing:
        number = replace(number, mean=number.mean + table_notes.WORSE)
    return number


def _column(facts: Sequence[Fact], losses: Sequence[Fact]) -> list[Value]:
    """Return the values of a column, given the losses of the same runs."""
    numbers = []
    for fact, loss in zip(facts, losses, strict=True):
        numbers.append(_number(fact, loss.is_worse_than_guessing))
    return [Value(number, fact) for number, fact in zip(aligned(numbers), facts, strict=True)]


def _facts(study: StudyResults, name: str, metric: Metric) -> list[Fact]:
    """Return the facts of one column of a table, one for each of its lines."""
    found: list[Fact] = []
    for group in study.layout.groups[name]:
        found += study.facts[group.place, metric.name].values()
    return found


def _build(study: StudyResults, declaration: Table) -> PrintedTable:
    name, plan, groups = declaration.name, study.plan, study.layout.groups[declaration.name]
    losses = _facts(study, name, LOSS)
    columns = {metric: _facts(study, name, metric) for metric in study.layout.columns[name]}
    # A column is left out if no run has a value of it, unless this is so for all columns.
    measured = {}
    for metric, facts in columns.items():
        if any(fact.is_measured for fact in facts):
            measured[metric] = facts
    shown = measured or columns
    left_out = [metric for metric in columns if metric not in shown]

    # All lines are aligned together, since they stand below each other.
    rows = []
    values = [_column(facts, losses) for facts in shown.values()]
    for loss, *cells in zip(losses, *values, strict=True):
        rows.append(
            Row(
                loss.group.tokens_label,
                loss.group.model_label,
                loss.label,
                loss.group.n_tokens,
                loss.group.setup.n_params,
                loss.optimizer,
                tuple(cells),
            )
        )

    facts = [fact for column in shown.values() for fact in column]
    notes = (
        table_notes.seed_note(groups),
        table_notes.bold_note(declaration, plan.statistics.bold),
        *table_notes.edge_notes(losses, len(groups)),
        *table_notes.best_notes(facts, tuple(shown)),
        *table_notes.held_out_notes(facts),
        *table_notes.guessing_notes(losses),
        *table_notes.missing_notes(facts, left_out),
        f"Protocol: {plan.protocol_label}.",
    )
    return PrintedTable(
        declaration,
        name,
        declaration.title,
        plan.name,
        table_notes.caption(study.layout, declaration),
        tuple(shown),
        tuple(rows),
        notes,
    )


def build_tables(study: StudyResults) -> tuple[PrintedTable, ...]:
    """Return the tables of a study, as its facts have them."""
    return tuple(_build(study, declaration) for declaration in study.layout.tables.values())
