"""Mirror of a study's files in MLflow: one importer, run now and then, that nothing reads from.

Training only appends to ``history.jsonl``, so a slow or absent server cannot touch it. An import adds what is new since
the last one: the tags of an MLflow run say how far it has come.
"""

import contextlib
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench import paths
from coupled_adam_bench.cells import Cell
from coupled_adam_bench.files import digest, read_json, read_json_lines
from coupled_adam_bench.plan import Plan

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run
    from mlflow.tracking import MlflowClient

METRICS_PER_REQUEST = 800  # MLflow takes 1000 of metrics, params and tags together
EVALUATIONS = ("test_loss.json", "embeddings.json", "lm_eval.json", "theory.json")
ARTIFACTS = ("cell.json", "run.json", *EVALUATIONS)
_TAG = "coupled_adam_bench."
_MLFLOW_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # 7, the default, take minutes
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # a line per run, with the server's password if the URI has one
}


def import_study(
    plan: Plan,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    runs: Path = paths.RESULTS / "runs",
) -> dict[str, Any]:
    """Import every cell that has begun training as a run of an MLflow experiment, adding only what is new.

    ``tracking_uri`` is a server or a database (default: ``MLFLOW_TRACKING_URI``, else ``results/mlflow.db``),
    ``experiment`` a name (default: the study's). A cell trained anew gets a new run; its old one is marked and deleted.
    Returns the experiment's name and id, and how many cells were ``created``, ``updated``, ``unchanged``,
    ``superseded`` (created again) and ``waiting`` (not begun). Raises ``ValueError`` for a broken file, and within
    seconds for a server that does not answer.
    """
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{paths.MLFLOW_DB}"
    name = experiment or plan.name
    client = _client(uri)
    with _errors_of(uri):
        experiment_id = _experiment(client, name, uri)
        known = {run.data.tags[_TAG + "cell"]: run for run in _runs(client, experiment_id)}
        counts = dict.fromkeys(("created", "updated", "unchanged", "superseded", "waiting"), 0)
        for cell in plan.cells.values():
            source = _read(runs / cell.id)
            outcomes = ["waiting"] if source is None else _import(client, experiment_id, plan, cell, source, known)
            for outcome in outcomes:
                counts[outcome] += 1
    return {"experiment": name, "experiment_id": experiment_id, **counts}


@dataclass(frozen=True)
class _Source:
    """The files of one cell: the rows of its history, its ``run.json`` and its evaluations, as far as there are any."""

    folder: Path
    history: list[dict[str, Any]]
    run: dict[str, Any] | None
    evaluations: dict[str, dict[str, Any]]

    @property
    def status(self) -> str:
        """Return ``running``, ``completed`` or ``diverged``."""
        return "running" if self.run is None else str(self.run["status"])

    def times(self) -> tuple[int, int]:
        """Return the first and the last time of the run, in milliseconds."""
        seconds = [row["time"] for row in self.history] or [(self.folder / "run.json").stat().st_mtime]
        return round(seconds[0] * 1000), round(seconds[-1] * 1000)

    def progress(self, tags: dict[str, str]) -> dict[str, str]:
        """Return the tags that say what is imported when this is; equal to those of the run if nothing is new.

        A resumed training writes some rows again: the last step never goes back.
        """
        steps = [_last_step(tags), *(row["step"] for row in self.history[-1:])]
        progress = {"first_row": digest(repr(self.history[:1])), "last_step": str(max(steps)), "status": self.status}
        if self.run is not None:
            progress["model_sha256"] = str(self.run["model_sha256"])
        progress |= {name: digest(repr(content["results"])) for name, content in self.evaluations.items()}
        return {_TAG + key: value for key, value in progress.items()}

    def continues(self, tags: dict[str, str]) -> bool:
        """Tell whether this is the training with these tags, possibly further on: same first row and same model."""
        progress = self.progress(tags)
        keys = [_TAG + key for key in ("first_row", "model_sha256") if _TAG + key in progress]
        return all(tags.get(key, progress[key]) == progress[key] for key in keys)


def _last_step(tags: dict[str, str]) -> int:
    """Return the last imported step, -1 before the first import; the one place with this default."""
    return int(tags.get(_TAG + "last_step", "-1"))


def _read(folder: Path) -> _Source | None:
    """Return what there is of a cell, None if it has written nothing yet."""
    history = read_json_lines(folder / "history.jsonl")
    found = {name: read_json(folder / name) for name in ("run.json", *EVALUATIONS) if (folder / name).exists()}
    run = found.pop("run.json", None)
    return _Source(folder, history, run, found) if history or run else None


def _client(uri: str) -> "MlflowClient":
    if uri.startswith("sqlite:///"):
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    for name, value in _MLFLOW_SETTINGS.items():  # what the user has set stays
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient

    for name in ("alembic", "mlflow.store.db.utils"):  # a line for each migration of a new database
        logging.getLogger(name).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=uri)


@contextlib.contextmanager
def _errors_of(uri: str) -> Iterator[None]:
    """Turn MLflow's exceptions into a ``ValueError`` that says what to do, without the user and password of ``uri``."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        secret = re.search(r"//([^/@]*@)", uri)
        message = f"MLflow at {uri}: {error}".replace(secret[1] if secret else "\0", "")
        raise ValueError(
            f"{message}\nStart or mend it, or unset MLFLOW_TRACKING_URI to use {paths.MLFLOW_DB}; "
            "the results are complete without it"
        ) from None


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """Let requests to a server fail after 5 seconds and at the first try."""
    hasty = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}
    before = {name: os.environ.get(name) for name in hasty}
    os.environ.update(hasty)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _experiment(client: "MlflowClient", name: str, uri: str) -> str:
    """Return the id of the experiment, which is created if there is none."""
    with _impatient():
        found = client.get_experiment_by_name(name)
    if found is None:
        # Artifacts of a local database lie beside it, not in ./mlruns; a server knows its own place.
        location = None
        if uri.startswith("sqlite:///"):
            folder = Path(uri.removeprefix("sqlite:///")).resolve().parent
            location = (folder / "mlflow-artifacts" / name).as_uri()
        return str(client.create_experiment(name, artifact_location=location))
    if found.lifecycle_stage != "active":
        raise ValueError(f"experiment: {name!r} is deleted in MLflow; restore it there, or remove it with `mlflow gc`")
    return str(found.experiment_id)


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
    for name, content in source.evaluations.items():
        if old.get(_TAG + name) != progress[_TAG + name]:
            metrics += _evaluation_metrics(content, source.folder / name, cell.steps)
    new = progress | {"mlflow.note.content": _note(cell, source)}
    if source.run is not None and (revision := source.run["environment"]["git_revision"]):
        new["mlflow.source.git.commit"] = revision
    params = [Param(name, str(value)) for name, value in _flatten(cell.to_json())]
    tags = [RunTag(name, value) for name, value in new.items()]
    _log_artifacts(client, run_id, source.folder)
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
        if name not in ("step", "time") and value is not None  # what a device cannot tell
    ]


def _evaluation_metrics(evaluation: dict[str, Any], path: Path, step: int) -> "list[Metric]":
    from mlflow.entities import Metric

    # Another evaluation of the same model has a later time, and MLflow shows the latest value of a step.
    timestamp = round(path.stat().st_mtime * 1000)
    return [
        Metric(f"{row['task']}/{row['metric']}", float(row["value"]), timestamp, step) for row in evaluation["results"]
    ]


def _log_artifacts(client: "MlflowClient", run_id: str, folder: Path) -> None:
    """Upload the small files of a run's folder in one go."""
    with tempfile.TemporaryDirectory() as staging:
        for name in ARTIFACTS:
            if (folder / name).exists():
                shutil.copy(folder / name, staging)
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
