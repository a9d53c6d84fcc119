"""Copies a study's files into MLflow; nothing in the pipeline reads them back.

Training only appends to ``history.jsonl``, so a slow or absent server cannot disturb it. An import adds what is new
since the last one: the tags of an MLflow run say what it already has.
"""

import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench import paths
from coupled_adam_bench.cells import Cell
from coupled_adam_bench.evaluation.stored import Measurement, measured_cells
from coupled_adam_bench.files import digest, read_sealed
from coupled_adam_bench.plan import Plan
from coupled_adam_bench.runs import read_history
from coupled_adam_bench.tracking_client import first_answer, mlflow_settings, open_client
from coupled_adam_bench.tracking_store import make_anew, make_whole, only_importer
from coupled_adam_bench.tracking_uri import (
    DamagedDatabaseError,
    Destination,
    TrackingError,
    destination,
    errors_as_sentences,
    refusal,
)

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run
    from mlflow.tracking import MlflowClient

METRICS_PER_REQUEST = 800  # MLflow takes 1000 of metrics, params and tags together
_TAG = "coupled_adam_bench."


def import_study(
    plan: Plan,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    runs: Path = paths.RUNS,
) -> dict[str, Any]:
    """Import every cell that has begun training as a run of an MLflow experiment, adding only what is new.

    ``tracking_uri`` is a server or a database (default: ``MLFLOW_TRACKING_URI``, else ``results/mlflow.db``),
    ``experiment`` a name (default: the study's). A cell trained anew gets a new run; its old one is marked and deleted.
    Returns the experiment's name and id, and how many cells were ``created``, ``updated``, ``unchanged``,
    ``superseded`` (created again) and ``waiting`` (not yet in training). Raises ``ValueError`` for a broken file, and
    within seconds for a server that does not answer.
    """
    place = destination(tracking_uri)
    with only_importer(place, runs.parent), mlflow_settings(place):
        if place.database is not None:
            with errors_as_sentences(place):
                make_whole(place)
        try:
            return _import_all(plan, place, experiment or plan.name, runs)
        except DamagedDatabaseError as error:  # in its values, which nothing sees before they are read
            if not place.ours:
                raise
            with errors_as_sentences(place):
                make_anew(place, str(error))
            return _import_all(plan, place, experiment or plan.name, runs)


def _import_all(plan: Plan, place: Destination, name: str, runs: Path) -> dict[str, Any]:
    with errors_as_sentences(place):
        client = open_client(place)
        experiment_id = _experiment(client, name, place)
        known = {run.data.tags[_TAG + "cell"]: run for run in _runs(client, experiment_id)}
    counts = dict.fromkeys(("created", "updated", "unchanged", "superseded", "waiting"), 0)
    for cell, measurements in measured_cells(plan, runs):
        outcomes = ["waiting"]
        if source := _read(runs / cell.id, measurements):
            with errors_as_sentences(place):
                outcomes = _import(client, experiment_id, plan, cell, source, known)
        for outcome in outcomes:
            counts[outcome] += 1
    return {"experiment": name, "experiment_id": experiment_id, **counts}


@dataclass(frozen=True)
class _Source:
    """The files of one cell: the rows of its history, its ``run.json`` and its evaluations, as far as there are any."""

    folder: Path
    history: list[dict[str, Any]]
    run: dict[str, Any] | None
    evaluations: dict[str, tuple[Path, list[dict[str, Any]]]]
    """By stage the file and the rows of what was measured under the settings of the study."""

    @property
    def status(self) -> str:
        """Return ``running``, ``completed`` or ``diverged``."""
        return "running" if self.run is None else str(self.run["status"])

    def times(self) -> tuple[int, int]:
        """Return the first and the last time of the run, in milliseconds."""
        seconds = [row["time"] for row in self.history] or [paths.RunFiles(self.folder).record.stat().st_mtime]
        return round(seconds[0] * 1000), round(seconds[-1] * 1000)

    def progress(self, tags: dict[str, str]) -> dict[str, str]:
        """Return the tags that a run has after this import; they equal its ``tags`` if nothing is new.

        A resumed training writes some rows again: the last step never goes back.
        """
        steps = [_last_step(tags), *(row["step"] for row in self.history[-1:])]
        progress = {"first_row": digest(repr(self.history[:1])), "last_step": str(max(steps)), "status": self.status}
        if self.run is not None:
            progress["model_sha256"] = str(self.run["model_sha256"])
        progress |= {stage: digest(repr(rows)) for stage, (_, rows) in self.evaluations.items()}
        return {_TAG + key: value for key, value in progress.items()}

    def continues(self, tags: dict[str, str]) -> bool:
        """Tell whether this is the training with these tags, possibly further on: same first row and same model."""
        progress = self.progress(tags)
        keys = [_TAG + key for key in ("first_row", "model_sha256") if _TAG + key in progress]
        return all(tags.get(key, progress[key]) == progress[key] for key in keys)


def _last_step(tags: dict[str, str]) -> int:
    """Return the last imported step, -1 before the first import; the one place with this default."""
    last_step = tags.get(_TAG + "last_step", "-1")
    return int(last_step) if last_step.isdecimal() else -1  # all is imported again if the tag is damaged


def _read(folder: Path, measurements: list[Measurement]) -> _Source | None:
    """Return what there is of a cell, None if it has written nothing yet."""
    files = paths.RunFiles(folder)
    history = read_history(files.history)
    _check_history(files.history, history)
    run = read_sealed(files.record) if files.record.exists() else None
    evaluations = {
        measurement.stage.name: (measurement.find(folder.name), measurement.read(folder.name)["results"])
        for measurement in measurements
        if measurement.is_there(folder.name)
    }
    return _Source(folder, history, run, evaluations) if history or run else None


def _check_history(path: Path, history: list[dict[str, Any]]) -> None:
    """Raise ``ValueError`` with the name of a history whose rows cannot be those of a training run."""

    def is_metric(name: str, value: Any) -> bool:
        float(value)
        return re.fullmatch(r"[\w.\-/ :]{1,250}", name) is not None  # MLflow's rule

    def is_row(row: dict[str, Any]) -> bool:
        metrics = all(value is None or is_metric(name, value) for name, value in row.items())
        return metrics and type(row["step"]) is int and 0 <= row["step"] < 2**63 and 0 <= row["time"] < 2**40

    try:
        whole = all(map(is_row, history))
    except (KeyError, TypeError, AttributeError, OverflowError, ValueError):
        whole = False
    if not whole:
        raise ValueError(f"{path}: not what this program writes; start again: the cell writes it anew")


def _experiment(client: "MlflowClient", name: str, place: Destination) -> str:
    """Return the id of the experiment, which is created if there is none."""
    experiment = first_answer(place, lambda: client.get_experiment_by_name(name))
    if experiment is None:
        # Artifacts of a local database lie beside it, not in ./mlruns; a server knows its own place.
        location = place.database and (place.database.resolve().parent / "mlflow-artifacts" / name).as_uri()
        return str(first_answer(place, lambda: client.create_experiment(name, artifact_location=location)))
    if experiment.lifecycle_stage == "deleted":
        raise TrackingError(
            f"experiment: {name!r} is deleted in MLflow; restore it there, or remove it with `mlflow gc`"
        )
    if not experiment.experiment_id:
        raise refusal(place.setting, f"what answers at {place.shown} is no MLflow server")
    return str(experiment.experiment_id)


def _runs(client: "MlflowClient", experiment_id: str) -> "Iterator[Run]":
    """Yield the runs of the experiment that an importer made."""
    token = None
    while True:
        page = client.search_runs([experiment_id], f"tags.`{_TAG}cell` != ''", max_results=1000, page_token=token)
        yield from page
        if not (token := page.token):
            return


def _import(
    client: "MlflowClient", experiment_id: str, plan: Plan, cell: Cell, source: _Source, known: "dict[str, Run]"
) -> list[str]:
    """Bring the run of one cell up to date and return what was done."""
    outcomes = []
    run = known.get(cell.id)
    if run is not None and not source.continues(run.data.tags):
        client.set_tag(run.info.run_id, _TAG + "superseded", "true")
        client.delete_run(run.info.run_id)
        outcomes.append("superseded")
        run = None
    if run is None:
        outcomes.append("created")
        tags = {"cell": cell.id, "study": plan.name, "protocol": plan.protocol_label}
        run = client.create_run(
            experiment_id,
            start_time=source.times()[0],
            run_name=cell.id,
            tags={_TAG + key: value for key, value in tags.items()},
        )
    elif source.progress(run.data.tags).items() <= run.data.tags.items():
        return ["unchanged"]
    else:
        outcomes.append("updated")
    _update(client, run, cell, source)
    return outcomes


def _update(client: "MlflowClient", run: "Run", cell: Cell, source: _Source) -> None:
    """Add what is new, the tags last: after an interruption the same comes again, which changes nothing."""
    from mlflow.entities import Param, RunTag

    run_id, old = run.info.run_id, run.data.tags
    progress = source.progress(old)
    metrics = _history_metrics(source.history, _last_step(old))
    for stage, (path, rows) in source.evaluations.items():
        if old.get(_TAG + stage) != progress[_TAG + stage]:
            metrics += _evaluation_metrics(path, rows, cell.steps)
    new = progress | {"mlflow.note.content": _note(cell, source)}
    if source.run is not None and (revision := source.run["environment"]["git_revision"]):
        new["mlflow.source.git.commit"] = revision
    params = [Param(name, str(value)) for name, value in _flatten(cell.to_json())]
    tags = [RunTag(name, value) for name, value in new.items()]
    _log_artifacts(client, run_id, source)
    if source.run is not None:
        status = "FINISHED" if source.status == "completed" else "FAILED"
        client.set_terminated(run_id, status, end_time=source.times()[1])
    # Within a request the tags come last.
    while len(metrics) > METRICS_PER_REQUEST:
        client.log_batch(run_id, metrics=metrics[:METRICS_PER_REQUEST])
        metrics = metrics[METRICS_PER_REQUEST:]
    client.log_batch(run_id, metrics=metrics, params=[] if _TAG + "first_row" in old else params, tags=tags)


def _history_metrics(history: list[dict[str, Any]], last_step: int) -> "list[Metric]":
    from mlflow.entities import Metric

    return [
        Metric(name, float(value), round(row["time"] * 1000), row["step"])
        for row in history
        if row["step"] > last_step
        for name, value in row.items()
        if name not in ("step", "time") and value is not None  # the device cannot measure it
    ]


def _evaluation_metrics(path: Path, rows: list[dict[str, Any]], step: int) -> "list[Metric]":
    from mlflow.entities import Metric

    # Another evaluation of the same model has a later time, and MLflow shows the latest value of a step.
    timestamp = round(path.stat().st_mtime * 1000)
    return [Metric(f"{row['task']}/{row['metric']}", float(row["value"]), timestamp, step) for row in rows]


def _log_artifacts(client: "MlflowClient", run_id: str, source: _Source) -> None:
    """Upload the small files of a run in one go, evaluations under the names of their stages."""
    run = paths.RunFiles(source.folder)
    files = {path.name: path for path in (run.cell, run.record)}
    files |= {f"{stage}.json": path for stage, (path, _) in source.evaluations.items()}
    with tempfile.TemporaryDirectory() as staging:
        for name, path in files.items():
            if path.exists():
                shutil.copy(path, Path(staging) / name)
        client.log_artifacts(run_id, staging)


def _note(cell: Cell, source: _Source) -> str:
    """Return the run's description in MLflow, Markdown."""
    reason = f" ({source.run['reason']})" if source.run is not None and source.run["reason"] else ""
    size = f"{cell.n_params:,} parameters, {cell.n_tokens:,} tokens"
    return f"**{source.status}**{reason}: {size}; files in `{source.folder}`"


def _flatten(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``("training.seq_len", 64)`` and so on from nested mappings."""
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _flatten(inner, f"{prefix}{key}.")
        else:
            yield prefix + key, inner
