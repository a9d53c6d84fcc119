"""The content of a printed table as plain text, which all renderers share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import isnan, nan

from coupled_adam_bench.page.blocks import Cell
from coupled_adam_bench.page.formats import (
    MISSING,
    Shorthand,
    fixed,
    paddings,
    shorthand,
    significant,
)
from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.sample import summarize
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.candidates import edges_of
from coupled_adam_bench.statistics.compare import RULES
from coupled_adam_bench.statistics.student import ALPHA
from coupled_adam_bench.study.catalog.metrics import FEW_DOCUMENTS, HELD_OUT_SIZES, Metric
from coupled_adam_bench.study.catalog.tables import Table
from coupled_adam_bench.study.config.execution import BoldRule
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.tuning import chosen_settings


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
        """The mean, the standard deviation and the values of the seeds in more digits, for who
        wants to see them."""
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


def _value(study: StudyResults, group: Group, metric: Metric, key: str) -> Value:
    values = tuple(study.samples(group, metric)[key])
    bold = study.bold(group, metric) == key
    return Value(shorthand(summarize(values), metric.digits), bold, values=values)


def _values(study: StudyResults, group: Group, key: str) -> tuple[Value, ...]:
    return tuple(_value(study, group, metric, key) for metric in study.columns(group.table))


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


def _missing_notes(study: StudyResults, name: str, shown: list[Value]) -> list[str]:
    missing = sum(value.missing for value in shown)
    if not missing:
        return []
    samples: list[list[float]] = []
    for group in study.groups[name]:
        for metric in study.columns(name):
            samples += study.samples(group, metric).values()
    note = (
        f"Missing ({MISSING}): {missing} of {len(shown)} values, where runs diverged, lack an"
        " evaluation or have an undefined metric; tests.csv has the reasons."
    )
    if any(0 < summarize(sample).n < len(sample) for sample in samples):
        note += (
            " Where an optimizer lacks only some of its seeds, nothing in that column of its block"
            " is bold."
        )
    return [note]


def _held_out_notes(study: StudyResults, name: str) -> list[str]:
    """Say how much text a loss is over, where the table has one and its size is known."""
    if all(metric.stage != "test_loss" for metric in study.columns(name)):
        return []
    values = study.values_of(dict.fromkeys(HELD_OUT_SIZES, "test"))
    ids: list[str] = []
    for group in study.groups[name]:
        for cells in group.cells.values():
            ids += [cell.id for cell in cells]
    sizes = []
    for size in HELD_OUT_SIZES:
        of_cells = [values.get((cell, size), nan) for cell in ids]
        sizes.append([value for value in of_cells if not isnan(value)])
    _, documents = sizes
    if not documents:
        return []
    # Cells that were evaluated on other text have other sizes: then the note has both ends.
    ranges = []
    for found in sizes:
        ends = sorted({min(found), max(found)})
        ranges.append(" to ".join(f"{value:,.0f}" for value in ends))
    n_tokens, n_documents = ranges
    few = (
        ", which are few: other text may give another loss (paired.csv)"
        if min(documents) < FEW_DOCUMENTS
        else ""
    )
    return [f"Losses are over {n_tokens} tokens of {n_documents} held-out documents{few}."]


def _best_notes(study: StudyResults, name: str) -> list[str]:
    """Say where the metrics of a table are best that have no better side."""
    notes = []
    for metric in study.columns(name):
        if metric.best_at is None:
            continue
        # Where the best value depends on the text, studies of several texts have several.
        found = sorted(
            {best for group in study.groups[name] for best in study.best_in(group, metric)}
        )
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


def _edge_notes(study: StudyResults, name: str) -> list[str]:
    """Warn of settings that a trial chose at the edge of what it tried."""
    tunings, groups, found = study.plan.tunings, study.groups[name], []
    for group in groups:
        place = f" at D = {group.tokens_label}, N = {group.model_label}" if len(groups) > 1 else ""
        for cell, *_ in group.cells.values():
            if cell.tuning is not None and cell.id != cell.slot:
                tuning = tunings[cell.tuning]
                for text, end in edges_of(tuning, chosen_settings(tuning, cell)):
                    found.append(f"{cell.optimizer.label}{place} ({text}, the {end})")
    return (
        [
            "Warning: chosen at the edge of what was tried, beyond which better settings may lie:"
            f" {', '.join(found)}."
        ]
        if found
        else []
    )


def _build(study: StudyResults, declaration: Table) -> PrintedTable:
    name, plan = declaration.name, study.plan
    groups = study.groups[name]
    # All rows are aligned together, since they stand below each other.
    values = iter(aligned([_values(study, group, key) for group in groups for key in group.cells]))
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
    notes = (
        _seed_note(groups),
        _bold_note(declaration, plan.statistics.bold),
        *_edge_notes(study, name),
        *_best_notes(study, name),
        *_held_out_notes(study, name),
        *_missing_notes(study, name, [value for row in rows for value in row.cells]),
        f"Protocol: {plan.protocol_label}.",
    )
    caption = _caption(plan, groups)
    return PrintedTable(
        declaration, name, declaration.title, plan.name, caption, study.columns(name), rows, notes
    )


def build_tables(study: StudyResults) -> tuple[PrintedTable, ...]:
    """Return the tables of a study: values from ``results.csv``, bold type from ``tests.csv``."""
    return tuple(_build(study, declaration) for declaration in study.tables.values())
