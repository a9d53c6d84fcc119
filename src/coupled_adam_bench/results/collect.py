"""The evaluations of all cells of a study as one long table, ``results.csv``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench import paths
from coupled_adam_bench.cells import Cell
from coupled_adam_bench.files import read_json
from coupled_adam_bench.plan import Plan
from coupled_adam_bench.results.schema import METRICS, RESULT_COLUMNS, THEORY_METRICS
from coupled_adam_bench.results.tidy import read_csv, typed_frame, write_csv

if TYPE_CHECKING:
    from pandas import DataFrame

_INTEGERS = ("n_params", "n_tokens", "seed")
_TYPES: dict[str, type] = {name: int if name in _INTEGERS else str for name in RESULT_COLUMNS} | {"value": float}
_KEY = ("study", "n_params", "n_tokens", "optimizer", "seed", "task", "metric")


def _read_evaluation(path: Path, cell: Cell, plan: Plan, expected: dict[str, Any]) -> dict[str, Any]:
    evaluation = read_json(path)
    try:
        owner, status, settings = evaluation["cell"], evaluation["status"], {**evaluation["settings"]}
        rows = [(row["task"], row["metric"], row["value"], row["unit"]) for row in evaluation["results"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: not an evaluation file ({error!r}); delete it and run again") from None
    if owner != cell.id:
        raise ValueError(f"{path}: belongs to cell {owner!r}, not to {cell.id!r}; delete it and run again")
    if status not in ("ok", "diverged"):
        raise ValueError(f"{path}: status is {status!r}, not 'ok' or 'diverged'; delete it and run again")
    if others := [f"{key} {settings.get(key)!r}" for key, value in expected.items() if settings.get(key) != value]:
        raise ValueError(
            f"{path}: measured with {', '.join(others)} by another study that has this cell; "
            f"delete {paths.study_dir(plan.name) / 'evaluation'} and run again"
        )
    for task, metric, value, _ in rows:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{path}: {task} {metric} is {value!r}, not a number; delete it and run again")
    return {"status": status, "model_sha256": evaluation["model_sha256"], "rows": rows}


def _cell_rows(cell: Cell, plan: Plan, folder: Path, partial: bool) -> list[tuple[str, str, float, str]]:
    """Return (task, metric, value, unit) of one cell, with NaN for what a diverged one would have been measured on."""
    stages = plan.part_of([cell.id]).study.evaluation.protocol_settings()
    files = [folder / f"{stage}.json" for stage in stages]
    missing = [path for path in files if not path.is_file()]
    if missing and not partial:
        names = ", ".join(str(path) for path in missing)
        raise ValueError(f"{names}: missing; evaluate this cell first, or collect partial results")
    evaluations = {path: _read_evaluation(path, cell, plan, stages[path.stem]) for path in files if path not in missing}
    if len({evaluation["model_sha256"] for evaluation in evaluations.values()}) > 1:
        raise ValueError(f"{folder}: its evaluations belong to different models; delete them and run again")
    rows = [row for evaluation in evaluations.values() for row in evaluation["rows"]]
    measured = [row[:2] for row in rows]
    if duplicates := {pair for pair in measured if measured.count(pair) > 1}:
        raise ValueError(f"{folder}: measured twice: {sorted(duplicates)}; delete its evaluations and run again")
    diverged = any(evaluation["status"] == "diverged" for evaluation in evaluations.values())
    columns = [(metric.task, metric.name, metric.unit) for metric in METRICS.values()]
    if "theory" in stages:
        columns += [("theory", name, "1") for name in THEORY_METRICS]
    for task, name, unit in columns:
        if (task, name) not in measured:
            if not (diverged or missing):
                raise ValueError(f"{folder}: no {task} {name}; delete its evaluations and run again")
            rows.append((task, name, float("nan"), unit))
    return rows


def collect(plan: Plan, runs: Path = paths.RESULTS / "runs", partial: bool = False) -> "DataFrame":
    """Return the results of all cells of a plan, one value per row, with the columns ``RESULT_COLUMNS``.

    A diverged cell has NaN for every metric of the tables, and so has, if ``partial``, one that is not evaluated yet.
    Raises ``ValueError`` for a missing or broken evaluation.
    """
    records = []
    for cell in plan.cells.values():
        key = (cell.n_params, cell.n_tokens, cell.optimizer.key, cell.seed)
        for task, metric, value, unit in _cell_rows(cell, plan, runs / cell.id, partial):
            row = (plan.name, *key, task, metric, float(value), unit, plan.protocol_label)
            records.append(dict(zip(RESULT_COLUMNS, row, strict=True)))
    return typed_frame(records, _TYPES)


def write_results(results: "DataFrame", path: Path) -> None:
    """Write ``results.csv`` atomically, in full precision."""
    write_csv(results, path)


def read_results(path: Path) -> "DataFrame":
    """Read ``results.csv``; ``ValueError`` for a wrong column, a value of the wrong type or a duplicate row."""
    return read_csv(path, _TYPES, _KEY)
