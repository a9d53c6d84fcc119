"""The evaluations of all cells of a study as one long table, ``results.csv``."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from pandas import DataFrame

from coupled_adam_bench.results.tidy import read_csv, typed_frame, write_csv
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import await_files
from coupled_adam_bench.store.stored import Measurement, measured_cells
from coupled_adam_bench.study.catalog.metrics import RESULT_COLUMNS
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.plan import Plan

_INTEGERS = ("n_params", "n_tokens", "seed")
_TYPES: dict[str, type] = {name: int if name in _INTEGERS else str for name in RESULT_COLUMNS} | {"value": float}
_KEY = ("study", "cell", "task", "metric")


CellRow = tuple[str, str, float, str]
"""Task, metric, value and unit."""


def _cell_rows(cell: Cell, measurements: list[Measurement], partial: bool) -> tuple[list[CellRow], bool]:
    """Return the rows of one cell, and whether it has all of them, which a diverged cell has not.

    What the stages always measure is NaN in a cell that has not all.
    """
    rows: list[CellRow] = []
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
    return rows, not (diverged or missing)


def _same_rows(found: dict[str, tuple[Cell, list[CellRow], bool]]) -> Iterator[tuple[Cell, str, str, float, str]]:
    """Yield the rows of all cells; a cell that has not all gets NaN for what the other cells of its study have."""
    of_study: dict[str, dict[tuple[str, str], str]] = {}
    for cell, rows, _ in found.values():
        of_study.setdefault(cell.study.name, {}).update({row[:2]: row[3] for row in rows})
    for cell, rows, whole in found.values():
        measured = {row[:2] for row in rows}
        others = of_study[cell.study.name].items()
        lacking = [] if whole else [(*key, float("nan"), unit) for key, unit in others if key not in measured]
        yield from ((cell, *row) for row in (*rows, *lacking))


def collect(plan: Plan, runs: Path = paths.RUNS, partial: bool = False) -> DataFrame:
    """Return the results of all cells of a plan, one value per row, with the columns ``RESULT_COLUMNS``.

    Only what was measured under the settings of this plan counts. A diverged cell has NaN for every metric that the
    other cells of its study have, and so has, if ``partial``, one that is not evaluated yet. Raises ``ValueError`` for
    a missing or damaged evaluation.
    """
    measured = list(measured_cells(plan, runs))
    if not partial:
        await_files(paths.RunFiles(runs / cell.id).record for cell, _ in measured)
        await_files(measurement.find(cell.id) for cell, measurements in measured for measurement in measurements)
    found = {cell.id: (cell, *_cell_rows(cell, measurements, partial)) for cell, measurements in measured}
    return results_frame(plan, _same_rows(found))


def results_frame(plan: Plan, rows: Iterable[tuple[Cell, str, str, float, str]]) -> DataFrame:
    """Return rows of (cell, task, metric, value, unit) as a frame with the columns ``RESULT_COLUMNS``."""
    records = []
    for cell, task, metric, value, unit in rows:
        settings = (plan.name, cell.n_params, cell.n_tokens, cell.optimizer.key, cell.seed)
        names = (plan.protocol_label, cell.id, cell.model.name, cell.data_id)
        row = (*settings, task, metric, float(value), unit, *names)
        records.append(dict(zip(RESULT_COLUMNS, row, strict=True)))
    return typed_frame(records, _TYPES)


def write_results(results: DataFrame, path: Path) -> None:
    """Write ``results.csv`` atomically, in full precision."""
    write_csv(results, path)


def read_results(path: Path) -> DataFrame:
    """Read ``results.csv``; ``ValueError`` for a wrong column, a value of the wrong type or a duplicate row."""
    return read_csv(path, _TYPES, _KEY)
