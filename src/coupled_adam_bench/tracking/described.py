"""What MLflow is told of a cell: its metrics and files, its name, its tags and its settings.

Nothing here asks MLflow for anything: ``importing.py`` does.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.records.stored import Measurement, beside
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import digest
from coupled_adam_bench.store.runs import read_run, run_history
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import CustomSettings
from coupled_adam_bench.tracking.place import TrackingError

if TYPE_CHECKING:
    from mlflow.entities import Metric

CELL = "coupled_adam_bench.cell"
"""The tag with the id of a run's cell; the run of a whole study does not have this tag."""
WITHOUT_SEED = "without_seed"
"""The tag with the name that the runs of a cell's other seeds have as well."""
_NAMES = {
    "tokens_per_second": "system/tokens_per_second",
    "peak_memory_bytes": "system/peak_memory_bytes",
    "val_loss": "val/loss",
    "mfu": "system/mfu",
}
_OF_SIZE = {"loss": "train_loss", "val_loss": "val_loss"}
"""The metrics of a history that have a second name with the size of the model, by which one chart
has one size: MLflow can filter its list of runs, and no chart."""
_NO_METRICS = ("step", "time", "seconds_left")


@dataclass(frozen=True)
class Source:
    """The files of a cell that has begun: the rows of its history, its ``run.json`` and its
    evaluations, if any."""

    folder: Path
    history: list[dict[str, Any]]
    run: dict[str, Any] | None
    evaluations: dict[str, tuple[Path, dict[str, Any]]]
    """By stage the file and the record of what was measured under the settings of the study."""

    @property
    def status(self) -> str:
        """Return ``running``, ``completed`` or ``diverged``."""
        return "running" if self.run is None else str(self.run["status"])

    def times(self) -> tuple[int, int]:
        """Return the first and the last time of the run, in milliseconds."""
        seconds = [row["time"] for row in self.history] or [
            paths.RunFiles(self.folder).record.stat().st_mtime
        ]
        return round(min(seconds) * 1000), round(max(seconds) * 1000)

    def state(self) -> str:
        """Return a hash of all that an import brings."""
        measured = {
            stage: (record["results"], record.get("files", {}))
            for stage, (_, record) in self.evaluations.items()
        }
        return digest(repr((self.history[-1:], self.run, measured)))

    def artifacts(self) -> dict[str, Path]:
        """Return the files that MLflow is given by name; evaluations and the files of their
        details begin with their stage.

        For a cell with the paper's seven tasks they have about 1 MB: large files, such as weights,
        are not among them.
        """
        run = paths.RunFiles(self.folder)
        files = {path.name: path for path in (run.cell, run.record) if path.exists()}
        for stage, (path, record) in self.evaluations.items():
            files |= {f"{stage}.json": path}
            files |= {f"{stage}.{name}": beside(path, name) for name in record.get("files", {})}
        return files

    def metrics(self, size: str, last_step: int, model_id: str | None) -> "Iterator[Metric]":
        """Yield the rows of the history after a step, the losses also by the model's ``size``, and
        all evaluations: MLflow keeps a value that comes again once.

        An evaluation is of step 0, which MLflow draws as a bar and not as a curve of one point.
        Another one of the same model has a later time, and MLflow shows the latest.
        """
        from mlflow.entities import Metric

        for row in self.history:
            for name, value in row.items():
                if row["step"] <= last_step or name in _NO_METRICS or value is None:
                    continue
                keys = [_NAMES.get(name, f"train/{name}")]
                if name in _OF_SIZE:
                    keys.append(f"{size}/{_OF_SIZE[name]}")
                for key in keys:
                    yield Metric(key, float(value), round(row["time"] * 1000), row["step"])
        for path, record in self.evaluations.values():
            at = round(path.stat().st_mtime * 1000)
            for found in record["results"]:
                yield Metric(
                    f"{found['task']}/{found['metric']}", float(found["value"]), at, 0, model_id
                )


def read_source(folder: Path, measurements: list[Measurement]) -> Source | None:
    """Return what there is of a cell, None if it has written nothing yet; ``ValueError`` names a
    broken file."""
    record = paths.RunFiles(folder).record
    history = run_history(folder)
    run = read_run(record) if record.exists() else None
    evaluations = {
        measurement.stage.name: (measurement.find(folder.name), measurement.read(folder.name))
        for measurement in measurements
        if measurement.is_there(folder.name)
    }
    return Source(folder, history, run, evaluations) if history or run else None


def source_of(folder: Path, measurements: list[Measurement]) -> Source | None:
    """Return what there is of a cell as :func:`read_source`; ``TrackingError`` for a broken file
    says what mends it."""
    try:
        return read_source(folder, measurements)
    except ValueError as error:
        raise TrackingError(
            f"{error}; start again, which makes it anew and imports the rest"
        ) from None


def run_name(cell: Cell) -> str:
    """Return a short name of a run that begins with what tells it from its neighbours in a list."""
    return f"{cell.optimizer.key} s{cell.seed} {_size(cell)}"


def name_without_seed(cell: Cell) -> str:
    """Return the name that the runs of a cell's other seeds have in common with its own, and none
    of other code."""
    own = [entry for entry in cell.optimizer.entries.values() if isinstance(entry, CustomSettings)]
    return f"{cell.optimizer.key} {_size(cell)}{''.join(f' ({entry.code_name})' for entry in own)}"


def _size(cell: Cell) -> str:
    tags = tags_to_group_by(cell)
    return f"{tags['tokens']} {tags['parameters']}"


def tags_to_group_by(cell: Cell) -> dict[str, str]:
    """Return what tells the cells of a study apart."""
    return {
        "optimizer": cell.optimizer.key,
        "seed": str(cell.seed),
        "tokens": cell.length_label,
        "parameters": cell.size_label,
    }


def metric_name(text: str) -> str:
    """Return a text with a hyphen for each character that MLflow takes in no name of a metric."""
    return re.sub(r"[^\w.\- :]", "-", text)


def size_of(cell: Cell) -> str:
    """Return what the names of a cell's losses by size begin with."""
    return metric_name(tags_to_group_by(cell)["parameters"])


def losses_by_size(plan: Plan) -> dict[str, list[str]]:
    """Return by the sizes of a study's models, the smallest first, the names of their losses."""
    cells = sorted(plan.cells.values(), key=lambda cell: cell.n_params)
    return {size: _losses_of(size) for size in map(size_of, cells)}


def _losses_of(size: str) -> list[str]:
    """Return the names of the losses of models of a size."""
    return [f"{size}/{name}" for name in _OF_SIZE.values()]


def tags_of(cell: Cell, plan: Plan) -> dict[str, str]:
    """Return the tags by which MLflow's pages filter and group the run of a cell."""
    return {
        CELL: cell.id,
        "study": plan.name,
        WITHOUT_SEED: name_without_seed(cell),
        "model": cell.model.name,
        "data": cell.data_id,
        "protocol": plan.protocol_label,
        **tags_to_group_by(cell),
        **origin_tags(),
    }


def origin_tags() -> dict[str, str]:
    """Return the tags that MLflow shows as "Source" and "Created by"."""
    user = os.environ.get("USER", "unknown")
    return {
        "mlflow.user": user,
        "mlflow.source.name": "coupled_adam_bench",
        "mlflow.source.type": "LOCAL",
    }


def tags_of_files(cell: Cell, source: Source) -> dict[str, str]:
    """Return the description of a run, and once it is trained where, by which revision, and what it
    left."""
    run, files = source.run or {}, paths.RunFiles(source.folder)
    reason = f" ({run['reason']})" if run.get("reason") else ""
    size = f"{cell.n_params:,} parameters, {cell.n_tokens:,} tokens"
    note = f"**{source.status}**{reason}: {size}; cell `{cell.id}`, files in `{source.folder}`"
    tags = {"mlflow.note.content": note}
    if run:
        tags["mlflow.source.git.commit"] = run["environment"]["git_revision"]
        tags["device"] = run["environment"].get("device")
        tags["checkpoints_path"] = str(files.checkpoints)
        tags["model_path"] = str(files.model) if run["model_sha256"] else ""
    return {name: value for name, value in tags.items() if value}


def params_of(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings of a cell as ``("training.seq_len", "64")`` and so on."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from params_of(value, f"{prefix}{name}.")
        else:
            yield prefix + name, str(value)
