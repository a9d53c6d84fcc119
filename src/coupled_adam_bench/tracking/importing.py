"""Copies a study's files into MLflow; nothing in the pipeline reads them back.

Training only appends to ``history.jsonl``, so a slow or absent server cannot disturb it. An import
adds what is new since the last one: tags of each MLflow run say what it already has. The run of the
study is the parent of those of its cells, and has the means of its tables, its figures and its
report. MLflow's page "Models" lists the trained models with the numbers of their evaluations; their
weights stay where they are, and a tag says where.
"""

import csv
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.machine.process import environment
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.records.stored import Measurement, beside, measured_cells
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import ASIDE, digest, sha256_file
from coupled_adam_bench.store.locks import folder_lock
from coupled_adam_bench.store.runs import read_run, run_history
from coupled_adam_bench.study.cells import Cell, readable_count
from coupled_adam_bench.study.config import CustomSettings
from coupled_adam_bench.study.plan import Plan, load_plan
from coupled_adam_bench.tracking.place import (
    FIRST_ANSWER,
    TrackingError,
    is_database,
    is_left_behind,
    local_path,
    masked,
    mlflow_at,
    open_client,
    tracking_uri,
)

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Metric, Run
    from mlflow.tracking import MlflowClient

CELL = "coupled_adam_bench.cell"
"""The tag with the id of a run's cell; the run of a whole study has none."""
_STUDY = "coupled_adam_bench.parent_of"
"""The tag that the run of a whole study has, and no other."""
_STATE = "coupled_adam_bench.state"
"""The tag with a hash of all that an import has brought, which is written last."""
_TRAINING = "coupled_adam_bench.training"
"""The tag with a hash of the first row of the history, which another training of the cell does not
have."""
_SUPERSEDED = "coupled_adam_bench.superseded"
"""The tag of a run whose cell was trained anew."""
_PARENT = "mlflow.parentRunId"
"""MLflow's tag with the run under which its list shows another one."""
_LAST_STEP = "coupled_adam_bench.last_step"
"""The tag with the last step of the history that is imported."""
_NAMES = {
    "tokens_per_second": "system/tokens_per_second",
    "peak_memory_bytes": "system/peak_memory_bytes",
    "val_loss": "val/loss",
    "mfu": "system/mfu",
}
_NO_METRICS = ("step", "time", "seconds_left")
METRICS_PER_REQUEST = 800  # MLflow takes 1000 of metrics, params and tags together
LOCK = ".mlflow.lock"
"""The lock of the import of these results, in their folder."""
_OF_STUDY = ("*.csv", "manifest.json", "tables/**/*", "figures/**/*", "report/**/*")
"""The files of a study's folder that its run is given."""
_OF_MODEL = ("README.md", "config.json", "generation_config.json")
_PAUSE = 20  # times the CPU time of an import is the least pause after it


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
        """Return the files that MLflow is given by name; evaluations and the files beside them
        begin with their stage.

        Of a cell with the paper's seven tasks they have about 1 MB: large files, such as weights,
        are not among them.
        """
        run = paths.RunFiles(self.folder)
        files = {path.name: path for path in (run.cell, run.record) if path.exists()}
        for stage, (path, record) in self.evaluations.items():
            files |= {f"{stage}.json": path}
            files |= {f"{stage}.{name}": beside(path, name) for name in record.get("files", {})}
        return files

    def metrics(self, last_step: int, model_id: str | None) -> "Iterator[Metric]":
        """Yield the rows of the history after a step, and all evaluations: MLflow keeps a value
        that comes again once.

        An evaluation is of step 0, which MLflow draws as a bar and not as a curve of one point.
        Another one of the same model has a later time, and MLflow shows the latest.
        """
        from mlflow.entities import Metric

        for row in self.history:
            for name, value in row.items():
                if row["step"] > last_step and name not in _NO_METRICS and value is not None:
                    named = _NAMES.get(name, f"train/{name}")
                    yield Metric(named, float(value), round(row["time"] * 1000), row["step"])
        for path, record in self.evaluations.values():
            at = round(path.stat().st_mtime * 1000)
            for found in record["results"]:
                yield Metric(
                    f"{found['task']}/{found['metric']}", float(found["value"]), at, 0, model_id
                )


def import_study(
    plan: Plan,
    uri: str | None = None,
    experiment: str | None = None,
    runs: Path = paths.RUNS,
    study_dir: Path | None = None,
) -> dict[str, Any]:
    """Import a study and every cell that has begun training as runs of an MLflow experiment, adding
    only what is new.

    ``uri`` is a server or a database (default: :func:`tracking_uri`), ``experiment`` a name
    (default: the study's). ``study_dir`` has the tables, figures and report, if they are written. A
    cell trained anew gets a new run; its old one is marked and deleted. What was deleted in MLflow,
    or left behind when the results were moved, comes anew. Returns the experiment's name and id,
    the results' folder if a database names files in it, and how many cells were ``created``,
    ``updated``, ``unchanged``, ``superseded`` (created again) and ``waiting`` (not yet in
    training). Raises ``TrackingError`` for a broken file, and within seconds for a server that does
    not answer.
    """
    uri, name = uri or tracking_uri(), experiment or plan.name
    counts = dict.fromkeys(("created", "updated", "unchanged", "superseded", "waiting"), 0)
    waiting = f"waiting for another import into {masked(uri, uri)}"
    with mlflow_at(uri), folder_lock(runs.parent, LOCK, waiting):
        client = open_client(uri)
        experiment_id = _experiment(client, uri, name, plan, runs.parent)
        of_cells = _runs(client, experiment_id, f"tags.`{CELL}` != ''")
        known = {run.data.tags[CELL]: run for run in of_cells if _SUPERSEDED not in run.data.tags}
        parent = _parent(client, experiment_id, plan)
        for cell, measurements in measured_cells(plan, runs):
            source = _source(runs / cell.id, measurements)
            outcomes = (
                _import(client, parent, plan, cell, source, known.get(cell.id))
                if source
                else ["waiting"]
            )
            for outcome in outcomes:
                counts[outcome] += 1
        if study_dir is not None:
            _update_parent(client, parent, study_dir)
    results = str(runs.parent.resolve()) if is_database(uri) else None
    return {
        "experiment": name,
        "experiment_id": experiment_id,
        paths.IMPORTED_FROM: results,
        **counts,
    }


def _experiment(client: "MlflowClient", uri: str, name: str, plan: Plan, results: Path) -> str:
    """Return the id of the experiment, which is created if there is none, or if the one of this
    name was deleted."""
    here = (results / paths.MLFLOW_ARTIFACTS.name).resolve()
    with environment(FIRST_ANSWER):
        experiment = client.get_experiment_by_name(name)
    if experiment is not None and experiment.lifecycle_stage == "deleted":
        _free_name(client, experiment)
        experiment = None
    if experiment is not None:
        if is_database(uri) and is_left_behind(experiment.artifact_location, here):
            raise TrackingError(
                f"MLflow at {masked(uri, uri)}: the experiment {name!r} has its files in"
                f" {local_path(experiment.artifact_location)}, where another project keeps them, or"
                " this one did; rename the experiment in MLflow, and one is made with its files in"
                f" {here}"
            )
        return str(experiment.experiment_id)
    # Artifacts of a database lie with the results, not in ./mlruns; a server knows its own place.
    location = (here / name).as_uri() if is_database(uri) else None
    tags = {"mlflow.note.content": plan.title or plan.name}
    return str(client.create_experiment(name, artifact_location=location, tags=tags))


def _free_name(client: "MlflowClient", deleted: "Experiment") -> None:
    """Rename a deleted experiment: MLflow makes none of the same name while it is kept, and renames
    no deleted one."""
    kept = f"{deleted.name} (deleted, {deleted.experiment_id})"
    client.restore_experiment(deleted.experiment_id)
    client.rename_experiment(deleted.experiment_id, kept)
    client.delete_experiment(deleted.experiment_id)
    say(
        f"MLflow's experiment {deleted.name!r} was deleted: it is kept as {kept!r} until `mlflow"
        " gc`, and made anew"
    )


def _source(folder: Path, measurements: list[Measurement]) -> Source | None:
    """Return what there is of a cell as :func:`read_source`; ``TrackingError`` for a broken file
    says what mends it."""
    try:
        return read_source(folder, measurements)
    except ValueError as error:
        raise TrackingError(
            f"{error}; start again, which makes it anew and imports the rest"
        ) from None


def _runs(client: "MlflowClient", experiment_id: str, which: str) -> "list[Run]":
    return list(client.search_runs([experiment_id], which, max_results=50_000))


def _parent(client: "MlflowClient", experiment_id: str, plan: Plan) -> "Run":
    """Return the run of the study, which is created if there is none."""
    for run in _runs(client, experiment_id, f"tags.`{_STUDY}` = '{plan.name}'"):
        return run
    note = f"{plan.title or plan.name}: {len(plan.cells)} cells, protocol {plan.protocol_label}"
    tags = {_STUDY: plan.name, "study": plan.name, "mlflow.note.content": note, **_origin_tags()}
    return client.create_run(experiment_id, run_name=f"study {plan.name}", tags=tags)


def _update_parent(client: "MlflowClient", parent: "Run", study_dir: Path) -> None:
    """Add what reporting has written, if it is not there yet; only then the run of the study is
    finished."""
    found = {
        path.relative_to(study_dir).as_posix(): path
        for glob in _OF_STUDY
        for path in study_dir.glob(glob)
    }
    files = {
        name: path
        for name, path in sorted(found.items())
        if path.is_file() and ASIDE not in path.name
    }
    state, run_id = (
        digest({name: sha256_file(path) for name, path in files.items()}),
        parent.info.run_id,
    )
    if not files or (
        parent.data.tags.get(_STATE) == state and _has_files(parent.info.artifact_uri, files)
    ):
        return
    for name, value in _means(study_dir):
        client.log_metric(run_id, name, value)
    _log_artifacts(client, run_id, files)
    client.set_terminated(run_id, "FINISHED")
    client.set_tag(run_id, _STATE, state)


def _means(study_dir: Path) -> Iterator[tuple[str, float]]:
    """Yield the means of a study's tables, named by table, column and row."""
    for path in sorted(study_dir.glob("tables/*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                name = re.sub(
                    r"[^\w.\- :]", "-", f"{row['optimizer_key']} {row['D']} {row['N']}"
                )  # what MLflow takes
                for column in row:
                    if column.endswith(".mean"):
                        yield (
                            f"{path.stem}/{column.removesuffix('.mean')}/{name}",
                            float(row[column]),
                        )


def _import(
    client: "MlflowClient", parent: "Run", plan: Plan, cell: Cell, source: Source, run: "Run | None"
) -> list[str]:
    """Bring the run of one cell up to date and return what was done."""
    training, outcomes = digest(repr(source.history[:1])), []
    if run is not None and run.data.tags.get(_TRAINING, training) != training:
        client.set_tag(run.info.run_id, _SUPERSEDED, "true")
        client.delete_run(run.info.run_id)
        outcomes, run = ["superseded"], None
    if run is None:
        # The models of its runs before, one that was deleted in MLflow too, would stand beside the
        # one of this run.
        for model in _models(client, parent, f"tags.`{CELL}` = '{cell.id}'"):
            client.delete_logged_model(model.model_id)
        tags = tags_of(cell, plan) | {_TRAINING: training, _PARENT: parent.info.run_id}
        run = client.create_run(parent.info.experiment_id, source.times()[0], tags, run_name(cell))
        outcomes.append("created")
    elif (
        run.data.tags.get(_PARENT) != parent.info.run_id
    ):  # the run of the study was deleted, and made anew
        client.set_tag(run.info.run_id, _PARENT, parent.info.run_id)
        outcomes.append("updated")
    has_all = run.data.tags.get(_STATE) == source.state() and _has_files(
        run.info.artifact_uri, source.artifacts()
    )
    if has_all:
        return outcomes or ["unchanged"]
    _update(client, run, cell, source)
    return outcomes or ["updated"]


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


def _update(client: "MlflowClient", run: "Run", cell: Cell, source: Source) -> None:
    """Add what is new, the tags last: after an interruption the same comes again, which changes
    nothing."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, Param, RunTag

    run_id, last_step = run.info.run_id, int(run.data.tags.get(_LAST_STEP, -1))
    params: list[Param] = []
    if _STATE not in run.data.tags:
        params, text = (
            [Param(*param) for param in params_of(cell.to_json())],
            cell.study.data.source,
        )
        dataset = Dataset(cell.study.data.name, cell.data_digest, text.kind, text.model_dump_json())
        client.log_inputs(
            run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])]
        )
    _log_artifacts(client, run_id, source.artifacts())
    model = (
        _link_model(client, run, cell, source)
        if source.run and source.run["model_sha256"]
        else None
    )
    # MLflow 3 fails for more than a hundred numbers of a model of which some come again.
    there = {(metric.key, metric.timestamp) for metric in model.metrics or ()} if model else set()
    found = source.metrics(last_step, str(model.model_id) if model else None)
    metrics = [
        metric
        for metric in found
        if metric.model_id is None or (metric.key, metric.timestamp) not in there
    ]
    for start in range(0, len(metrics), METRICS_PER_REQUEST):
        client.log_batch(run_id, metrics=metrics[start : start + METRICS_PER_REQUEST])
    if source.run is not None:
        status = "FINISHED" if source.status == "completed" else "FAILED"
        client.set_terminated(run_id, status, end_time=source.times()[1])
    # A resumed training writes some rows again: the last step never goes back.
    steps = (last_step, *(row["step"] for row in source.history[-1:]))
    tags = tags_of_files(cell, source) | {_LAST_STEP: str(max(steps)), _STATE: source.state()}
    client.log_batch(
        run_id, params=params, tags=[RunTag(name, value) for name, value in tags.items()]
    )


def _models(client: "MlflowClient", run: "Run", which: str) -> list[Any]:
    """Return the models in the experiment of a run that a filter of MLflow finds."""
    return list(client.search_logged_models([run.info.experiment_id], which))


def _has_files(place: str, names: Iterable[str]) -> bool:
    """Tell whether the files of an import are where it put them; a server is believed, since it
    takes a request."""
    folder = local_path(place)
    return folder is None or all((folder / name).exists() for name in names)


def _link_model(client: "MlflowClient", run: "Run", cell: Cell, source: Source) -> Any:
    """Return the model of a run, which is made if there is none; one that was cut off is made
    anew."""
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    assert source.run is not None
    files, sha256 = paths.RunFiles(source.folder), source.run["model_sha256"]
    shown = [path for path in (files.model / name for name in _OF_MODEL) if path.exists()]
    for model in _models(client, run, f"source_run_id = '{run.info.run_id}'"):
        is_whole = model.status == LoggedModelStatus.READY and model.tags["sha256"] == sha256
        if is_whole and _has_files(model.artifact_location, (path.name for path in shown)):
            return model
        client.delete_logged_model(model.model_id)
    model = client.create_logged_model(
        run.info.experiment_id,
        name=re.sub(r"[/:.%\"']", "_", run_name(cell)),  # MLflow takes no model with these
        source_run_id=run.info.run_id,
        tags={CELL: cell.id, "path": str(files.model), "sha256": sha256},
        params=tags_to_group_by(cell),
        model_type=cell.model.architecture,
    )
    for path in shown:
        client.log_model_artifact(model.model_id, str(path))
    client.log_outputs(run.info.run_id, [LoggedModelOutput(model.model_id, step=cell.steps)])
    return client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)


def _log_artifacts(client: "MlflowClient", run_id: str, files: dict[str, Path]) -> None:
    """Upload files in one go under the given names."""
    with tempfile.TemporaryDirectory() as staging:
        for name, path in files.items():
            (Path(staging) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, Path(staging) / name)
        client.log_artifacts(run_id, staging)


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
        "tokens": cell.tokens_label or readable_count(cell.n_tokens),
        "parameters": cell.model.label or readable_count(cell.n_params),
    }


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
        **_origin_tags(),
    }


def _origin_tags() -> dict[str, str]:
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


def follow_study(plan_file: Path, seconds: float) -> None:
    """Import the study of a plan every so many ``seconds``, until standard input ends; never
    returns.

    The workflow holds the other end of the input. However the workflow ends, the kernel closes that
    end, and this process ends, even within a request that hangs: the next import adds what is
    missing.
    """
    os.nice(19)
    Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    pause, said = seconds, ""
    while True:
        time.sleep(pause)
        start, reason = time.process_time(), ""
        try:
            import_study(load_plan(plan_file))
        except (ValueError, OSError) as error:
            reason = str(error)
        if reason not in ("", said):
            say(f"MLflow has not everything yet: {reason}")
        pause, said = max(seconds, _PAUSE * (time.process_time() - start)), reason
