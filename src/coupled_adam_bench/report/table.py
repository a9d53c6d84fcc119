"""The content of a printed table as plain text, which all renderers share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from coupled_adam_bench.page.blocks import Cell
from coupled_adam_bench.page.formats import (
    MISSING,
    Shorthand,
    fixed,
    paddings,
    shorthand,
    significant,
)
from coupled_adam_bench.results.facts import Fact
from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.sample import summarize
from coupled_adam_bench.results.study_results import LOSS, StudyResults
from coupled_adam_bench.statistics.compare import RULES
from coupled_adam_bench.statistics.student import ALPHA
from coupled_adam_bench.study.catalog.metrics import FEW_DOCUMENTS, Metric
from coupled_adam_bench.study.catalog.tables import Table
from coupled_adam_bench.study.config.execution import BoldRule
from coupled_adam_bench.study.plan import Plan


@dataclass(frozen=True)
class Value:
    """A number as it is printed; ``padding`` characters behind it align the means of its column.

    ``values`` are those of the seeds, unrounded, where the renderers show or write them.
    """

    number: Shorthand
    bold: bool = False
    padding: int = 0
    values: tuple[float, ...] = ()

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
        """The mean, the standard deviation and the values of the seeds in more digits, for
        readers who want to see them."""
        sample = summarize(self.values)
        seeds = ", ".join(significant(value, 6) for value in self.values)
        if len(self.values) < 2:
            return seeds
        return (
            f"mean {significant(sample.mean, 6)}, standard deviation {significant(sample.sd)},"
            f" seeds: {seeds}"
        )


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


_WORSE = "†"
"""The mark of a loss that is worse than that of guessing."""
_LONGEST = 1000
"""From here on a number of a run that is worse than guessing is printed in two digits, so that its
row is as wide as others."""


def _value(fact: Fact, has_failed: bool) -> Value:
    """Return a fact as it is printed; the run ``has_failed`` if its loss is worse than guessing."""
    number = shorthand(fact.sample, fact.metric.digits)
    if has_failed and abs(fact.sample.mean) >= _LONGEST:
        number = Shorthand(significant(fact.sample.mean, 2))
    if fact.is_worse_than_guessing:
        number = replace(number, mean=number.mean + _WORSE)
    return Value(number, fact.bold, values=tuple(fact.by_seed.values()))


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


def _caption(plan: Plan, groups: tuple[Group, ...]) -> str:
    labels = list(
        dict.fromkeys(label for group in groups for label in group.optimizer_labels.values())
    )
    what = " and ".join(labels) if len(labels) == 2 else "Embedding optimizers"
    return f"{what} at D training tokens and N parameters. Study: {plan.title or plan.name}."


def _seed_note(groups: tuple[Group, ...]) -> str:
    counts = sorted({len(cells) for group in groups for cells in group.cells.values()})
    if counts == [1]:
        return "Single runs, one seed each."
    seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Mean and sample standard deviation over {seeds} seeds: 0.123 (4) means 0.123 ± 0.004."


def _bold_note(table: Table, rule: BoldRule) -> str:
    others = table.rules.bold_beats
    if not table.rules.tested:
        return f"Bold: better than {others}; no test."
    return f"Bold: significantly better than {others} ({RULES[rule].says}, p < {ALPHA:g})."


def _missing_notes(facts: Sequence[Fact], left_out: Sequence[Metric]) -> list[str]:
    """Say what is missing among the values of a table, and which columns were ``left_out``."""
    notes = []
    if left_out:
        names = ", ".join(metric.description for metric in left_out)
        notes.append(f"Left out, since no run has a value: {names}.")
    missing = sum(math.isnan(fact.sample.mean) for fact in facts)
    if missing:
        note = (
            f"Missing ({MISSING}): {missing} of {len(facts)} values, where runs diverged, lack an"
            " evaluation or have an undefined metric; tests.csv has the reasons."
        )
        if any(0 < fact.sample.n < len(fact.by_seed) for fact in facts):
            note += (
                " Where an optimizer lacks only some of its seeds, nothing in that column of its"
                " block is bold."
            )
        notes.append(note)
    return notes


def _guessing_notes(losses: Sequence[Fact]) -> list[str]:
    """Say what the mark of a loss means that is worse than guessing."""
    found = sorted({fact.guessing for fact in losses if fact.is_worse_than_guessing})
    if not found:
        return []
    guessing = ", ".join(fixed(each, LOSS.digits) for each in found)
    return [f"{_WORSE}: worse than guessing, a loss above that of equal probabilities, {guessing}."]


def _held_out_notes(facts: Sequence[Fact]) -> list[str]:
    """Say how much text a loss is over, where the table has one and its size is known."""
    losses = [fact for fact in facts if fact.metric.stage == "test_loss"]
    tokens = [size for fact in losses for size in fact.held_out_tokens]
    documents = [size for fact in losses for size in fact.held_out_documents]
    if not documents:
        return []
    # Cells that were evaluated on other text have other sizes: then the note has both ends.
    ranges = []
    for found in (tokens, documents):
        ends = sorted({min(found), max(found)})
        ranges.append(" to ".join(f"{value:,.0f}" for value in ends))
    n_tokens, n_documents = ranges
    if any(fact.group.first.training.data_order == "pairs" for fact in losses):
        return [f"Losses are over all {n_tokens} pairs of their source, so they are exact."]
    few = (
        ", which are few: other text may give another loss (paired.csv)"
        if min(documents) < FEW_DOCUMENTS
        else ""
    )
    return [f"Losses are over {n_tokens} tokens of {n_documents} held-out documents{few}."]


def _best_notes(facts: Sequence[Fact], columns: Sequence[Metric]) -> list[str]:
    """Say where the metrics of a table are best that have no better side."""
    notes = []
    for metric in columns:
        if metric.best_at is None:
            continue
        # Where the best value depends on the text, studies of several texts have several.
        found = sorted({best for fact in facts if fact.metric == metric for best in fact.best})
        if found:
            place = " to ".join(
                dict.fromkeys(fixed(best, metric.digits) for best in (found[0], found[-1]))
            )
            whose = (
                ", what the training text's own frequencies have,"
                if isinstance(metric.best_at, str)
                else ""
            )
            notes.append(
                f"{metric.description.capitalize()}: best at {place}{whose} and compared by the"
                " distance."
            )
        else:
            notes.append(
                f"{metric.description.capitalize()}: what is best was not measured, so nothing is"
                " bold."
            )
    return notes


def _edge_notes(losses: Sequence[Fact], n_groups: int) -> list[str]:
    """Warn of settings that a trial chose at the edge of what it tried."""
    found = []
    for fact in losses:
        group = fact.group
        place = f" at D = {group.tokens_label}, N = {group.model_label}" if n_groups > 1 else ""
        found += [f"{fact.label}{place} ({edge})" for edge in fact.edges]
    if not found:
        return []
    return [
        "Warning: chosen at the edge of what was tried, beyond which better settings may lie:"
        f" {', '.join(found)}."
    ]


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
        _seed_note(groups),
        _bold_note(declaration, plan.statistics.bold),
        *_edge_notes(losses, len(groups)),
        *_best_notes(facts, columns),
        *_held_out_notes(facts),
        *_guessing_notes(losses),
        *_missing_notes(facts, left_out),
        f"Protocol: {plan.protocol_label}.",
    )
    caption = _caption(plan, groups)
    return PrintedTable(
        declaration, name, declaration.title, plan.name, caption, columns, rows, notes
    )


def build_tables(study: StudyResults) -> tuple[PrintedTable, ...]:
    """Return the tables of a study, as its facts have them."""
    return tuple(_build(study, declaration) for declaration in study.layout.tables.values())
