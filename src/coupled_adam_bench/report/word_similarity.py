"""The section "Word similarity" of the report: each set with its kept pairs, coverage and correlations."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coupled_adam_bench.report.formats import MISSING, shorthand
from coupled_adam_bench.report.table import Value, aligned
from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.t_test import summarize
from coupled_adam_bench.study.catalog.names import SUBWORDS

COLUMNS = {
    "Pearson, cosine": ("", "pearson_cosine"),
    "Spearman, cosine": ("", "spearman_cosine"),
    "Pearson, dot": ("", "pearson_dot"),
    "Spearman, dot": ("", "spearman_dot"),
    "pieces: Pearson, cosine": (SUBWORDS, "pearson_cosine"),
}
"""The columns: the ending of the task and the metric of each."""
_DIGITS = 2

Values = Mapping[tuple[str, str, str], float]
"""Values by cell, task and metric."""


@dataclass(frozen=True)
class SetRow:
    """A set: how many of its pairs are kept and which share of them, as text, and the value in every column."""

    name: str
    n_pairs: str
    coverage: str
    subword_coverage: str
    cells: tuple[Value, ...]


@dataclass(frozen=True)
class PlaceRows:
    """The sets of a group; ``optimizers`` are (label, rows), in the order of the study."""

    group: Group
    optimizers: tuple[tuple[str, tuple[SetRow, ...]], ...]


@dataclass(frozen=True)
class WordSimilaritySection:
    """What the template prints; ``tables`` is by the study's table."""

    columns: tuple[str, ...]
    tables: dict[str, tuple[PlaceRows, ...]]


def _first(values: Values, cells: Sequence[str], task: str, metric: str, form: str) -> str:
    """Return a value that all cells share, from the first that has it."""
    found = (values.get((cell, task, metric), math.nan) for cell in cells)
    return next((format(value, form) for value in found if not math.isnan(value)), MISSING)


def _place(group: Group, values: Values, sets: Sequence[str]) -> PlaceRows:
    def samples(cells: Sequence[str], task: str, metric: str) -> list[float]:
        return [values.get((cell, task, metric), math.nan) for cell in cells]

    ids = {key: [cell.id for cell in cells] for key, cells in group.cells.items()}
    printed = iter(
        aligned(
            [
                tuple(
                    Value(shorthand(summarize(samples(cells, name + ending, metric)), _DIGITS))
                    for ending, metric in COLUMNS.values()
                )
                for cells in ids.values()
                for name in sets
            ]
        )
    )
    optimizers = []
    for key, cells in ids.items():
        rows = [
            SetRow(
                name,
                _first(values, cells, name, "n_pairs", ",.0f"),
                _first(values, cells, name, "coverage", ".1%"),
                _first(values, cells, name + SUBWORDS, "coverage", ".1%"),
                next(printed),
            )
            for name in sets
        ]
        optimizers.append((group.optimizer_labels[key], tuple(rows)))
    return PlaceRows(group, tuple(optimizers))


def word_similarity_section(study: StudyResults) -> WordSimilaritySection | None:
    """Return the section of a study, None of one without tables or without sets."""
    rows = study.results.to_dict("records")
    values = {(row["cell"], row["task"], row["metric"]): row["value"] for row in rows}
    tables: dict[str, tuple[PlaceRows, ...]] = {}
    for name, groups in study.groups.items():
        places = []
        for group in groups:
            cells = {cell.id for of_optimizer in group.cells.values() for cell in of_optimizer}
            tasks = dict.fromkeys(task for cell, task, metric in values if metric == "coverage" and cell in cells)
            sets = [task for task in tasks if not task.endswith(SUBWORDS)]
            if sets:
                places.append(_place(group, values, sets))
        if places:
            tables[name] = tuple(places)
    return WordSimilaritySection(tuple(COLUMNS), tables) if tables else None
