"""What MLflow is told of a cell, read from its files: name, tags, metrics and data set. MLflow itself is not needed."""

import contextlib
import getpass
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import digest
from coupled_adam_bench.store.runs import read_run, run_history
from coupled_adam_bench.store.stored import Measurement, beside
from coupled_adam_bench.study.cells import Cell, readable_count
from coupled_adam_bench.study.config import CustomSettings
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.tracking.uri import TrackingError

CELL = "coupled_adam_bench.cell"
"""The tag with the id of a run's cell; the run of a whole study has none."""
IMPORTED = "coupled_adam_bench.imported"
"""The tag that says, as JSON, what of a run's files MLflow has already."""
_NAMES = {
    "tokens_per_second": "system/tokens_per_second",
    "peak_memory_bytes": "system/peak_memory_bytes",
    "val_loss": "val/loss",
    "mfu": "system/mfu",
}
_NO_METRICS = ("step", "time", "seconds_left")


class Point(NamedTuple):
    """A value of a metric, with its time in milliseconds."""

    name: str
    value: float
    timestamp: int
    step: int
    of_model: bool = False
    """Whether it was measured on the trained model."""


@dataclass(frozen=True)
class Source:
    """The files of one cell: the rows of its history, its ``run.json`` and its evaluations, as far as there are any."""

    folder: Path
    history: list[dict[str, Any]]
    points: list[Point]
    """The metrics of the history."""
    run: dict[str, Any] | None
    evaluations: dict[str, tuple[Path, dict[str, Any]]]
    """By stage the file and the record of what was measured under the settings of the study."""

    @property
    def status(self) -> str:
        """Return ``running``, ``completed`` or ``diverged``."""
        return "running" if self.run is None else str(self.run["status"])

    @property
    def model_sha256(self) -> str | None:
        """Return the SHA-256 of the weights of the trained model, ``None`` if there is none."""
        return None if self.run is None else self.run["model_sha256"]

    def times(self) -> tuple[int, int]:
        """Return the first and the last time of the run, in milliseconds."""
        seconds = [row["time"] for row in self.history] or [paths.RunFiles(self.folder).record.stat().st_mtime]
        return round(min(seconds) * 1000), round(max(seconds) * 1000)

    def progress(self, imported: dict[str, Any]) -> dict[str, Any]:
        """Return what MLflow has after this import; it equals what is ``imported`` if nothing is new.

        A resumed training writes some rows again: the last step never goes back.
        """
        measured = {
            stage: (record["results"], record.get("files", {})) for stage, (_, record) in self.evaluations.items()
        }
        progress = {
            "first_row": digest(repr(self.history[:1])),
            "last_step": max([last_step(imported), *(row["step"] for row in self.history[-1:])]),
            "status": self.status,
            "evaluations": digest(repr(measured)),
        }
        return progress if self.run is None else {**progress, "model_sha256": str(self.model_sha256)}

    def continues(self, imported: dict[str, Any]) -> bool:
        """Tell whether this is the training that is ``imported``, possibly further on: same first row and model."""
        progress = self.progress(imported)
        same = [key for key in ("first_row", "model_sha256") if key in progress and key in imported]
        return all(imported[key] == progress[key] for key in same)

    def artifacts(self) -> dict[str, Path]:
        """Return the files that MLflow is given by name; evaluations and the files beside them begin with their stage.

        Of a cell with the paper's seven tasks they have about 1 MB: large files, such as weights, are not among them.
        """
        run = paths.RunFiles(self.folder)
        files = {path.name: path for path in (run.cell, run.record)}
        for stage, (path, record) in self.evaluations.items():
            files |= {f"{stage}.json": path}
            files |= {f"{stage}.{name}": beside(path, name) for name in record.get("files", {})}
        return {name: path for name, path in files.items() if path.exists()}

    def new_points(self, imported: dict[str, Any]) -> list[Point]:
        """Return the new rows of the history, and all evaluations: MLflow keeps a value that comes again once."""
        points = [point for point in self.points if point.step > last_step(imported)]
        for path, record in self.evaluations.values():
            # Another evaluation of the same model has a later time, and MLflow shows the latest value of a step.
            # All are of step 0, which MLflow draws as bars and not as curves of one point.
            timestamp = round(path.stat().st_mtime * 1000)
            points += [
                Point(f"{row['task']}/{row['metric']}", float(row["value"]), timestamp, 0, of_model=True)
                for row in record["results"]
            ]
        return points


def read_source(folder: Path, measurements: list[Measurement]) -> Source | None:
    """Return what there is of a cell, None if it has written nothing yet; ``TrackingError`` names a broken file."""
    files = paths.RunFiles(folder)
    try:
        history = run_history(folder)
        run = read_run(files.record) if files.record.exists() else None
        evaluations = {
            measurement.stage.name: (measurement.find(folder.name), measurement.read(folder.name))
            for measurement in measurements
            if measurement.is_there(folder.name)
        }
    except ValueError as error:
        raise TrackingError(str(error)) from None
    try:
        points = [
            Point(_NAMES.get(name, f"train/{name}"), float(value), round(row["time"] * 1000), int(row["step"]))
            for row in history
            for name, value in [("time", row["time"]), *row.items()]
            if name not in _NO_METRICS and value is not None  # the device cannot measure it
        ]
    except (KeyError, TypeError, AttributeError, OverflowError, ValueError):
        raise TrackingError(
            f"{files.history}: not what this program writes; start again: the cell writes it anew"
        ) from None
    return Source(folder, history, points, run, evaluations) if history or run else None


def last_step(imported: dict[str, Any]) -> int:
    """Return the last step that is imported, -1 before the first import; the one place with this default."""
    return int(imported.get("last_step", -1))


def parse_imported(tags: dict[str, str]) -> dict[str, Any]:
    """Return what the tag of a run says is imported; nothing, and so all is imported again, if it is damaged."""
    try:
        found = dict(json.loads(tags.get(IMPORTED, "{}")))
        return found if isinstance(found["last_step"], int) else {}
    except (ValueError, KeyError, TypeError):
        return {}


def run_name(cell: Cell) -> str:
    """Return a short name of a run that begins with what tells it from its neighbours in a list."""
    return f"{cell.optimizer.key} s{cell.seed} {_tokens(cell)} {_params(cell)}"


def name_without_seed(cell: Cell) -> str:
    """Return the name that the runs of a cell's other seeds have in common with its own, and none of other code."""
    code = f" ({cell.optimizer.code_name})" if isinstance(cell.optimizer, CustomSettings) else ""
    return f"{cell.optimizer.key} {_tokens(cell)} {_params(cell)}{code}"


def _tokens(cell: Cell) -> str:
    return cell.tokens_label or readable_count(cell.n_tokens)


def _params(cell: Cell) -> str:
    return cell.model.label or readable_count(cell.n_params)


def tags_of(cell: Cell, plan: Plan) -> dict[str, str]:
    """Return the tags by which MLflow's pages filter and group the run of a cell."""
    return {
        CELL: cell.id,
        "study": plan.name,
        "without_seed": name_without_seed(cell),
        "model": cell.model.name,
        "data": cell.data_id,
        "protocol": plan.protocol_label,
        **tags_to_group_by(cell),
        **origin_tags(),
    }


def tags_to_group_by(cell: Cell) -> dict[str, str]:
    """Return what tells the cells of a study apart."""
    return {
        "optimizer": cell.optimizer.key,
        "seed": str(cell.seed),
        "tokens": _tokens(cell),
        "parameters": _params(cell),
    }


def origin_tags() -> dict[str, str]:
    """Return the tags that MLflow shows as "Source" and "Created by"."""
    user = "unknown"
    with contextlib.suppress(KeyError, OSError):  # a container may have no name for its user
        user = getpass.getuser()
    return {"mlflow.user": user, "mlflow.source.name": "coupled_adam_bench", "mlflow.source.type": "LOCAL"}


def tags_of_run(run: dict[str, Any], folder: Path) -> dict[str, str]:
    """Return the tags that ``run.json`` adds once a cell is trained: where, by which revision, and what it left."""
    environment, files = run["environment"], paths.RunFiles(folder)
    found = {
        "device": environment.get("device"),
        "mlflow.source.git.commit": environment["git_revision"],
        "model_path": str(files.model) if run["model_sha256"] else None,
        "checkpoints_path": str(files.checkpoints),
    }
    return {name: str(value) for name, value in found.items() if value}


def note_of(cell: Cell, source: Source) -> str:
    """Return the description of a run, Markdown."""
    reason = f" ({source.run['reason']})" if source.run is not None and source.run["reason"] else ""
    size = f"{cell.n_params:,} parameters, {cell.n_tokens:,} tokens"
    return f"**{source.status}**{reason}: {size}; cell `{cell.id}`, files in `{source.folder}`"


def params_of(settings: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the settings of a cell as ``{"training.seq_len": "64"}`` and so on."""
    params: dict[str, str] = {}
    for name, value in settings.items():
        params |= params_of(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: str(value)}
    return params
