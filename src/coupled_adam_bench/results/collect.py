"""The evaluations of all cells of a study as one long table, ``results.csv``."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from coupled_adam_bench import paths
from coupled_adam_bench.catalog.metrics import RESULT_COLUMNS
from coupled_adam_bench.cells import Cell
from coupled_adam_bench.evaluation.stored import Measurement, measured_cells
from coupled_adam_bench.plan import Plan
from coupled_adam_bench.results.tidy import read_csv, typed_frame, write_csv

if TYPE_CHECKING:
    from pandas import DataFrame

_INTEGERS = ("n_params", "n_tokens", "seed")
_TYPES: dict[str, type] = {name: int if name in _INTEGERS else str for name in RESULT_COLUMNS} | {"value": float}
_KEY = ("study", "cell", "task", "metric")


def _cell_rows(cell: Cell, measurements: list[Measurement], partial: bool) -> list[tuple[str, str, float, str]]:
    """Return (task, metric, value, unit) of one cell, with NaN for what a diverged one would have been measured on."""
    rows: list[tuple[str, str, float, str]] = []
    diverged = missing = False
    for measurement in measurements:
        if partial and not measurement.is_there(cell.id):
            missing = True
            continue
        record = measurement.read(cell.id)
        diverged |= record["status"] == "diverged"
        rows += [(row["task"], row["metric"], row["value"], row["unit"]) for row in record["results"]]
    measured = {row[:2] for row in rows}
    for measurement in measurements:
        for task, name, unit in measurement.columns:
            if (task, name) not in measured:
                if not (diverged or missing):
                    raise ValueError(
                        f"{measurement.find(cell.id)}: no {task} {name}; delete this file and start again: it is "
                        "measured anew"
                    )
                rows.append((task, name, float("nan"), unit))
    return rows


def collect(plan: Plan, runs: Path = paths.RUNS, partial: bool = False) -> "DataFrame":
    """Return the results of all cells of a plan, one value per row, with the columns ``RESULT_COLUMNS``.

    Only what was measured under the settings of this plan counts. A diverged cell has NaN for every metric of the
    tables, and so has, if ``partial``, one that is not evaluated yet. Raises ``ValueError`` for a missing or damaged
    evaluation.
    """
    return results_frame(
        plan,
        (
            (cell, *row)
            for cell, measurements in measured_cells(plan, runs)
            for row in _cell_rows(cell, measurements, partial)
        ),
    )


def results_frame(plan: Plan, rows: Iterable[tuple[Cell, str, str, float, str]]) -> "DataFrame":
    """Return rows of (cell, task, metric, value, unit) as a frame with the columns ``RESULT_COLUMNS``."""
    records = []
    for cell, task, metric, value, unit in rows:
        settings = (plan.name, cell.n_params, cell.n_tokens, cell.optimizer.key, cell.seed)
        names = (plan.protocol_label, cell.id, cell.model.name, cell.data_id)
        row = (*settings, task, metric, float(value), unit, *names)
        records.append(dict(zip(RESULT_COLUMNS, row, strict=True)))
    return typed_frame(records, _TYPES)


def write_results(results: "DataFrame", path: Path) -> None:
    """Write ``results.csv`` atomically, in full precision."""
    write_csv(results, path)


def read_results(path: Path) -> "DataFrame":
    """Read ``results.csv``; ``ValueError`` for a wrong column, a value of the wrong type or a duplicate row."""
    return read_csv(path, _TYPES, _KEY)
