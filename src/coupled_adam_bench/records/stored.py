"""Evaluations: the form of their numbers, where they are on disk, and whether they are what was
measured. Light.

The name of an evaluation's file ends in a hash of everything that can change its numbers: stage and
version, settings, and the model. Studies that share a cell and measure it otherwise therefore have
files of their own, side by side, and a study never finds those of another.
"""

import importlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import digest, read_sealed, sha256_file
from coupled_adam_bench.store.markup import first_of
from coupled_adam_bench.store.runs import read_run
from coupled_adam_bench.study.catalogue.metrics import METRICS
from coupled_adam_bench.study.catalogue.stages import OWN_METRICS_STAGE, STAGES, Stage
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import Study
from embedding_geometry.rows import ResultRow as ResultRow

LARGEST = 1e70
"""The largest size of a number of results: Welch's test takes the fourth power of a deviation,
which must be finite."""


def is_usable(value: float) -> bool:
    """Tell whether statistics can use a number: NaN stands for one that is missing, others are at
    most ``LARGEST``."""
    return math.isnan(value) or abs(value) <= LARGEST


@dataclass(frozen=True)
class Evaluation:
    """The numbers of one cell from one stage: rows of ``results.csv``, and what else is kept beside
    them."""

    results: list[ResultRow]
    undefined: list[str] = field(default_factory=list)
    """The reasons for the values that are NaN."""
    detail: dict[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents of further files, which are kept beside the evaluation, by the ends of their
    names."""


Evaluator = Callable[[Cell, Path], Evaluation]
"""A function that evaluates a cell, given the folder of its model."""


def row(task: str, metric: str, value: float, unit: str = "1") -> ResultRow:
    """Return one row; the unit of a metric in the catalogue is the one declared there."""
    unit = METRICS[metric].unit if metric in METRICS else unit
    return {"task": task, "metric": metric, "value": float(value), "unit": unit}


def named(function: str) -> Any:
    """Import and return what a stage's declaration names as ``module:function`` of this package."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(f"coupled_adam_bench.{module}"), name)


def settings_of(stage: Stage, study: Study, data_id: str) -> dict[str, Any]:
    """Return everything but the model that can change a stage's numbers in a study.

    ``ValueError`` if a file that belongs to it, such as a word-similarity set, cannot be read.
    """
    settings: dict[str, Any] = json.loads(json.dumps(named(stage.settings)(study, data_id)))
    return settings  # as it comes back from a file: tuples are lists


@dataclass(frozen=True)
class Measurement:
    """A stage under one study's settings: it knows the file of each cell, and checks what it reads
    from there."""

    stage: Stage
    settings: dict[str, Any]
    columns: tuple[tuple[str, str, str], ...]
    """Task, metric and unit of all that the stage must measure."""
    runs: Path = paths.RUNS

    def files(self, cell_id: str) -> paths.RunFiles:
        """Return the files of a cell's run."""
        return paths.RunFiles(self.runs / cell_id)

    def model_sha256(self, cell_id: str) -> str | None:
        """Return the SHA-256 of a trained cell's model, ``None`` for a diverged one.

        ``ValueError`` if the cell is not trained, or if its ``run.json`` is damaged or another
        cell's.
        """
        path = self.files(cell_id).record
        run = read_run(path)
        if run["status"] not in ("completed", "diverged"):
            raise ValueError(f"{path}: status {run['status']!r}, neither completed nor diverged")
        sha256: str | None = run["model_sha256"]
        return sha256

    def path(self, cell_id: str, model_sha256: str | None) -> Path:
        """Return the file of a cell's evaluation."""
        key = digest(
            {
                "stage": self.stage.name,
                "version": self.stage.version,
                "columns": self.columns,  # a metric that is added is measured
                "settings": self.settings,
                "model_sha256": model_sha256,
            }
        )
        return self.files(cell_id).evaluation(self.stage.name, key)

    def find(self, cell_id: str) -> Path:
        """Return the file of a trained cell's evaluation, whether it is there or not."""
        return self.path(cell_id, self.model_sha256(cell_id))

    def file(self, cell_id: str, name: str) -> Path:
        """Return the file beside a trained cell's evaluation whose name ends in ``name``."""
        return beside(self.find(cell_id), name)

    def is_there(self, cell_id: str) -> bool:
        """Tell whether a cell is trained and has its file."""
        return self.files(cell_id).record.is_file() and self.find(cell_id).is_file()

    def read(self, cell_id: str) -> dict[str, Any]:
        """Return a cell's evaluation; ``ValueError`` with the file if it is missing or not what was
        measured."""
        model_sha256 = self.model_sha256(cell_id)
        expected = {
            "cell": cell_id,
            "stage": self.stage.name,
            "version": self.stage.version,
            "settings": self.settings,
            "model_sha256": model_sha256,
        }
        return read_evaluation(self.path(cell_id, model_sha256), expected)

    def read_whole(self, cell_id: str) -> dict[str, Any]:
        """Return a cell's evaluation as :meth:`read`; ``ValueError`` too if it has other metrics
        than are declared.

        What a diverged cell lacks is NaN, whether its file has rows or not.
        """
        record = self.read(cell_id)
        if record["status"] == "diverged":
            return record
        if problem := self.undeclared(record["results"]):
            raise ValueError(f"{self.find(cell_id)}: {problem}")
        return record

    def undeclared(self, rows: Sequence[ResultRow]) -> str | None:
        """Return how the rows of a cell differ from what the stage declares, or ``None``.

        They have each of its columns once, in its unit, and none of another stage. Further rows are
        the stage's own.
        """
        units = {(row["task"], row["metric"]): row["unit"] for row in rows}
        lacking = [
            f"{task} {metric}"
            for task, metric, unit in self.columns
            if units.get((task, metric)) != unit
        ]
        if lacking:
            return (
                f"{self.stage.name} declares {first_of(lacking)}, and did not measure it, or in"
                " another unit"
            )
        # A row under another stage's name would hide that stage's own number in the results.
        columns_of_others = {
            (metric.task, metric.name)
            for metric in METRICS.values()
            if metric.stage != self.stage.name
        }
        if foreign := sorted(columns_of_others & units.keys()):
            return (
                f"{self.stage.name} measured {', '.join(map(' '.join, foreign))}, which another"
                " stage declares"
            )
        if len(units) < len(rows):
            return f"{self.stage.name} measured one metric of a task twice"
        return None

    def damage(self, cell_id: str) -> str | None:
        """Return what is wrong with a cell's evaluation as one line, or ``None``."""
        try:
            self.read_whole(cell_id)
        except (ValueError, OSError) as error:
            return str(error)
        return None


def read_evaluation(path: Path, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return an evaluation; ``ValueError`` with the file if it is missing, damaged, or not what is
    ``expected``.

    The files beside it are compared with the SHA-256 that it has of them under ``files``, if it has
    any.
    """
    record = read_sealed(path)
    for key, value in expected.items():
        if record.get(key) != value:
            raise ValueError(f"{path}: {key} is {record.get(key)!r:.200}, not {value!r:.200}")
    for name, sha256 in record.get("files", {}).items():
        _check_file(beside(path, name), sha256)
    if problem := _unusable(record["results"]):
        raise ValueError(f"{path}: {problem}")
    return record


def _unusable(rows: Iterable[ResultRow]) -> str | None:
    """Return which number of an evaluation statistics cannot use, or ``None``."""
    for found in rows:
        if not is_usable(found["value"]):
            return (
                f"{found['task']} {found['metric']} is {found['value']:.4g}, above {LARGEST:g} in"
                " size"
            )
    return None


def beside(evaluation: Path, name: str) -> Path:
    """Return the file beside an evaluation's file whose name ends in ``name``."""
    return evaluation.with_name(f"{evaluation.stem}.{name}")


def _check_file(path: Path, sha256: str) -> None:
    """Raise ``ValueError`` if a file is missing or has another checksum."""
    found = sha256_file(path) if path.is_file() else None
    if found != sha256:
        state = f"SHA-256 {found}" if found else "missing"
        raise ValueError(f"{path}: {state}, but its evaluation says {sha256}")


def measurement_of(
    stage: Stage, study: Study, data_id: str, runs: Path = paths.RUNS
) -> Measurement:
    """Return a stage under a study's settings; ``ValueError`` as :func:`settings_of`."""
    columns = stage.measures
    if stage.name == OWN_METRICS_STAGE:
        columns += tuple(
            ("embeddings", metric.name, metric.unit) for metric in study.evaluation.metrics
        )
    return Measurement(stage, settings_of(stage, study, data_id), columns, runs)


_PRINT = {"symbol", "digits", "unit", "description"}
"""The settings of a study's own metric that change no number."""


def stated_measures(plan: Plan) -> dict[str, str]:
    """Return by study and metric a hash of all but the model that can change what hypotheses are
    about.

    That is what the stage of the metric is given and, of a study's own metric, which direction of
    it is better.
    """
    assert plan.stated is not None
    found = {}
    for planned in plan.blocks:
        study = planned.study
        own = {
            metric.name: metric.model_dump(exclude=_PRINT) for metric in study.evaluation.metrics
        }
        for hypothesis in plan.stated.plan.hypotheses:
            if hypothesis.table == planned.block.table:
                name = hypothesis.metric
                settings = settings_of(
                    STAGES[study.metrics[name].stage], study, plan.data_id(study)
                )
                found[f"{study.name} {name}"] = digest([settings, own.get(name)])
    return found


def measured_cells(plan: Plan, runs: Path = paths.RUNS) -> Iterator[tuple[Cell, list[Measurement]]]:
    """Yield each cell of a plan, in its order, with the measurements of the study that it belongs
    to."""
    measurements: dict[str, list[Measurement]] = {}
    for cell in plan.cells.values():
        if cell.study.name not in measurements:
            stages = cell.study.stages
            measurements[cell.study.name] = [
                measurement_of(stage, cell.study, cell.data_id, runs) for stage in stages
            ]
        yield cell, measurements[cell.study.name]


def wrong_row(rows: Iterable[ResultRow]) -> str | None:
    """Return what is wrong with the rows of an evaluation: a value out of its metric's bounds; else
    ``None``."""
    for row in rows:
        metric, value = METRICS.get(row["metric"]), row["value"]
        if (
            metric is None
            or metric.task != row["task"]
            or math.isnan(value)
            or metric.low <= value <= metric.high
        ):
            continue
        return (
            f"{row['task']} {row['metric']} is {value!r}, outside {metric.low:g} to {metric.high:g}"
        )
    return None
