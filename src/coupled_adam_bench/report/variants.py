"""The section "Other ways to isotropy" of the report: embeddings changed after training, beside those as trained."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coupled_adam_bench.plan import Plan
from coupled_adam_bench.report.formats import shorthand
from coupled_adam_bench.report.table import Column, Value
from coupled_adam_bench.results.groups import Group, Values, table_groups, table_values
from coupled_adam_bench.results.schema import METRICS
from coupled_adam_bench.statistics.t_test import summarize

if TYPE_CHECKING:
    from pandas import DataFrame

SHOWN = (METRICS["isotropy"], METRICS["r_bar"])
AS_TRAINED = "as trained"
TREATMENTS = {"embeddings_centered": "minus the mean", "embeddings_abtt": "all-but-the-top"}
"""Labels by task of ``results.csv``."""


@dataclass(frozen=True)
class VariantRow:
    """An optimizer's embedding as trained or after a treatment, and its value in every column."""

    treatment: str
    cells: tuple[Value, ...]


@dataclass(frozen=True)
class VariantTable:
    """The treatments of a group; ``optimizers`` are (label, rows), in the order of the study."""

    group: Group
    columns: tuple[Column, ...]
    optimizers: tuple[tuple[str, tuple[VariantRow, ...]], ...]


@dataclass(frozen=True)
class VariantSection:
    """All that the template prints: its tables by the study's table, none if no treatment was measured."""

    tables: dict[str, tuple[VariantTable, ...]]
    missing: bool


def _treated_values(plan: Plan, results: "DataFrame", task: str) -> Values:
    """Return a treatment's values under the names that those as trained have in tables."""
    rows = results[(results["task"] == task) & results["metric"].isin([metric.name for metric in SHOWN])]
    return table_values(plan, rows.assign(task=rows["metric"].map({metric.name: metric.task for metric in SHOWN})))


def _cells(group: Group, key: str, values: Values) -> tuple[Value, ...]:
    cells = []
    for metric in SHOWN:
        mean, _, spread = shorthand(summarize(group.samples(values, metric)[key]), metric.digits).partition(" ")
        cells.append(Value(mean, spread, bold=False))
    return tuple(cells)


def _table(group: Group, values: dict[str, Values]) -> VariantTable:
    optimizers = tuple(
        (
            cells[0].optimizer.label,
            tuple(VariantRow(treatment, _cells(group, key, found)) for treatment, found in values.items()),
        )
        for key, cells in group.cells.items()
    )
    columns = tuple(
        Column(metric, max(len(row.cells[index].spread) for _, rows in optimizers for row in rows))
        for index, metric in enumerate(SHOWN)
    )
    return VariantTable(group, columns, optimizers)


def variant_section(plan: Plan, results: "DataFrame") -> VariantSection | None:
    """Return the section of a study, None of one without tables; ``ValueError`` for results of another study."""
    groups = table_groups(plan)
    if not groups:
        return None
    values = {AS_TRAINED: table_values(plan, results)}
    values |= {label: _treated_values(plan, results, task) for task, label in TREATMENTS.items()}
    if not any(values[label] for label in TREATMENTS.values()):
        return VariantSection({}, missing=True)
    tables = {name: tuple(_table(group, values) for group in found) for name, found in groups.items()}
    cells = [
        cell
        for found in tables.values()
        for table in found
        for _, rows in table.optimizers
        for row in rows
        for cell in row.cells
    ]
    return VariantSection(tables, any(cell.missing for cell in cells))
