"""The section "Other ways to isotropy" of the report: embeddings changed after training, beside those as trained."""

from dataclasses import dataclass

from coupled_adam_bench.report.formats import shorthand
from coupled_adam_bench.report.table import Value, aligned
from coupled_adam_bench.results.groups import Group, Values
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.contrasts import CENTERED
from coupled_adam_bench.statistics.t_test import summarize
from coupled_adam_bench.study.catalog.metrics import METRICS, Metric

SHOWN = (METRICS["isotropy"], METRICS["r_bar"])
AS_TRAINED = "as trained"
TREATMENTS = {
    CENTERED: "minus the mean",
    "embeddings_norm_scaled": "minus the mean, norm-scaled",
    "embeddings_abtt": "all-but-the-top",
    "embeddings_abtt2": "all-but-the-top, 2 directions",
}
"""The label of each treatment, by its task in ``results.csv``."""


@dataclass(frozen=True)
class VariantRow:
    """An optimizer's embedding as trained or after a treatment, and its value in every column."""

    treatment: str
    cells: tuple[Value, ...]


@dataclass(frozen=True)
class VariantTable:
    """The treatments of a group; ``optimizers`` are (label, rows), in the order of the study."""

    group: Group
    optimizers: tuple[tuple[str, tuple[VariantRow, ...]], ...]


@dataclass(frozen=True)
class VariantSection:
    """What the template prints; ``tables`` is by the study's table, and empty if no treatment was measured."""

    columns: tuple[Metric, ...]
    tables: dict[str, tuple[VariantTable, ...]]
    missing: bool


def _table(group: Group, values: dict[str, Values]) -> VariantTable:
    printed = iter(
        aligned(
            [
                tuple(Value(shorthand(summarize(group.samples(treated, m)[key]), m.digits)) for m in SHOWN)
                for key in group.cells
                for treated in values.values()
            ]
        )
    )
    return VariantTable(
        group,
        tuple(
            (label, tuple(VariantRow(treatment, next(printed)) for treatment in values))
            for label in group.optimizer_labels.values()
        ),
    )


def variant_section(study: StudyResults) -> VariantSection | None:
    """Return the section of a study, None of one without tables."""
    if not study.groups:
        return None
    values = {AS_TRAINED: study.values}
    for task, label in TREATMENTS.items():
        values[label] = study.values_of({metric.name: task for metric in SHOWN})
    if not any(values[label] for label in TREATMENTS.values()):
        return VariantSection(SHOWN, {}, missing=True)
    tables = {name: tuple(_table(group, values) for group in groups) for name, groups in study.groups.items()}
    shown = [table for of_name in tables.values() for table in of_name]
    cells = [cell for table in shown for _, rows in table.optimizers for row in rows for cell in row.cells]
    return VariantSection(SHOWN, tables, any(cell.missing for cell in cells))
