"""The evaluations of all cells of a study as one long table, ``results.csv``."""

from collections.abc import Iterable
from pathlib import Path

from pandas import DataFrame

from coupled_adam_bench.records.stored import LARGEST, Measurement, is_usable, measured_cells
from coupled_adam_bench.results.tidy import read_csv, typed_frame
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import await_files
from coupled_adam_bench.study.catalogue.metrics import RESULT_COLUMNS
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell

_INTEGERS = ("n_params", "n_tokens", "seed")
TYPES: dict[str, type] = (
    dict.fromkeys(RESULT_COLUMNS, str) | dict.fromkeys(_INTEGERS, int) | {"value": float}
)
"""The type of each column of results.csv."""
_KEY = ("study", "cell", "task", "metric")


Found = dict[tuple[str, str], tuple[float, str]]
"""Value and unit by task and metric."""


def _measured(cell: Cell, measurements: list[Measurement], partial: bool) -> tuple[Found, bool]:
    """Return what was measured of a cell, and whether that is all; in a diverged cell it is not.

    If numbers are missing, those that the stages always measure are NaN.
    """
    there = [
        measurement for measurement in measurements if not partial or measurement.is_there(cell.id)
    ]
    records = [measurement.read_whole(cell.id) for measurement in there]
    whole = there == measurements and all(record["status"] != "diverged" for record in records)
    rows = [row for record in records for row in record["results"]]
    found: Found = {(row["task"], row["metric"]): (row["value"], row["unit"]) for row in rows}
    for measurement in measurements:
        for task, name, unit in measurement.columns:
            found.setdefault((task, name), (float("nan"), unit))
    return found, whole


def collect(plan: Plan, runs: Path = paths.RUNS, partial: bool = False) -> DataFrame:
    """Return the results of all cells of a plan, one value per row, with the columns
    ``RESULT_COLUMNS``.

    Only what was measured under the settings of this plan counts. A diverged cell has NaN for every
    metric that the other cells of its study have, and so has, if ``partial``, one that is not
    evaluated yet. Raises ``ValueError`` for a missing or damaged evaluation.
    """
    measured = list(measured_cells(plan, runs))
    if not partial:
        await_files(paths.RunFiles(runs / cell.id).record for cell, _ in measured)
        await_files(
            measurement.find(cell.id)
            for cell, measurements in measured
            for measurement in measurements
        )
    cells = [(cell, *_measured(cell, measurements, partial)) for cell, measurements in measured]
    of_study: dict[str, Found] = {}
    for cell, found, _ in cells:
        of_study.setdefault(cell.study.name, {}).update(found)
    for cell, found, whole in cells:
        if not whole:
            lacking = {
                key: (float("nan"), unit) for key, (_, unit) in of_study[cell.study.name].items()
            }
            found |= lacking | found
    rows = ((cell, *key, *value) for cell, found, _ in cells for key, value in found.items())
    return results_frame(plan, rows)


def results_frame(plan: Plan, rows: Iterable[tuple[Cell, str, str, float, str]]) -> DataFrame:
    """Return rows of (cell, task, metric, value, unit) as a frame with the columns
    ``RESULT_COLUMNS``."""
    records = []
    for cell, task, metric, value, unit in rows:
        settings = (plan.name, cell.n_params, cell.n_tokens, cell.optimizer.key, cell.seed)
        names = (plan.protocol_label, cell.id, cell.model.name, cell.data_id)
        row = (*settings, task, metric, float(value), unit, *names)
        records.append(dict(zip(RESULT_COLUMNS, row, strict=True)))
    return typed_frame(records, TYPES)


def read_results(path: Path) -> DataFrame:
    """Read ``results.csv``; ``ValueError`` for a wrong column, a value that cannot be used or a
    duplicate row."""
    results = read_csv(path, TYPES, _KEY)
    unusable = results[~results["value"].map(is_usable)]
    if len(unusable):
        first = unusable.iloc[0]
        raise ValueError(
            f"{path}: {len(unusable)} values are not numbers of at most {LARGEST:g} in size, such"
            f" as the {first['task']} {first['metric']} of {first['cell']}, {first['value']:.4g};"
            " use NaN for a missing one"
        )
    return results
