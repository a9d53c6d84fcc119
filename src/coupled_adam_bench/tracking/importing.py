"""Copies a study's files into MLflow; nothing in the pipeline reads them back.

Training only appends to ``history.jsonl``, so a slow or absent server cannot disturb it. An import
adds what is new since the last one: tags of each MLflow run say what it already has. The run of the
study stands among the runs of its cells, and has the means of its tables, its figures and its
report. MLflow's page "Models" lists the trained models with the numbers of their evaluations; their
weights stay where they are, and a tag says where.
"""

import csv
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.records.stored import measured_cells
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import ASIDE, digest, sha256_file
from coupled_adam_bench.store.locks import folder_lock
from coupled_adam_bench.study.plan import Plan, load_plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.tracking.alive import (
    experiment_of,
    has_files,
    link_model,
    log_artifacts,
    models_of,
    run_of_study,
    runs_of,
)
from coupled_adam_bench.tracking.described import (
    CELL,
    Source,
    metric_name,
    params_of,
    run_name,
    size_of,
    source_of,
    tags_of,
    tags_of_files,
)
from coupled_adam_bench.tracking.place import (
    is_database,
    masked,
    mlflow_at,
    open_client,
    tracking_uri,
)
from coupled_adam_bench.tracking.view import shown_at

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

_STATE = "coupled_adam_bench.state"
"""The tag with a hash of all that an import has brought, which is written last."""
_TRAINING = "coupled_adam_bench.training"
"""The tag with a hash of the first row of the history, which another training of the cell does not
have."""
_SUPERSEDED = "coupled_adam_bench.superseded"
"""The tag of a run whose cell was trained anew."""
_LAST_STEP = "coupled_adam_bench.last_step"
"""The tag with the last step of the history that is imported."""
METRICS_PER_REQUEST = 800  # MLflow takes 1000 of metrics, params and tags together
LOCK = ".mlflow.lock"
"""The lock of the import of these results, in their folder."""
_OF_STUDY = ("*.csv", "manifest.json", "tables/**/*", "figures/**/*", "report/**/*")
"""The files of a study's folder that its run is given."""
_PAUSE = 20  # times the CPU time of an import is the least pause after it


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
    what to type and open to see it, the results' folder if a database names files in it, and how
    many cells were ``created``, ``updated``, ``unchanged``, ``superseded`` (created again) and
    ``waiting`` (not yet in training). Raises ``TrackingError`` for a broken file, and within
    seconds for a server that does not answer.
    """
    uri, name = uri or tracking_uri(), experiment or plan.name
    counts = dict.fromkeys(("created", "updated", "unchanged", "superseded", "waiting"), 0)
    waiting = f"waiting for another import into {masked(uri, uri)}"
    with mlflow_at(uri), folder_lock(runs.parent, LOCK, waiting):
        client = open_client(uri)
        experiment_id = experiment_of(client, uri, name, plan, runs.parent)
        of_cells = runs_of(client, experiment_id, f"tags.`{CELL}` != ''")
        known = {run.data.tags[CELL]: run for run in of_cells if _SUPERSEDED not in run.data.tags}
        study = run_of_study(client, experiment_id, plan)
        for cell, measurements in measured_cells(plan, runs):
            source = source_of(runs / cell.id, measurements)
            outcomes = ["waiting"]
            if source:
                outcomes = _import(client, experiment_id, plan, cell, source, known.get(cell.id))
            for outcome in outcomes:
                counts[outcome] += 1
        # The study comes last: its run is finished once all that it is made of is there.
        if study_dir is not None:
            _update_study(client, study, study_dir)
    results = str(runs.parent.resolve()) if is_database(uri) else None
    return {
        "experiment": name,
        "experiment_id": experiment_id,
        paths.SHOWN: shown_at(uri, experiment_id),
        paths.IMPORTED_FROM: results,
        **counts,
    }


def _update_study(client: "MlflowClient", study: "Run", study_dir: Path) -> None:
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
    run_id = study.info.run_id
    state = digest({name: sha256_file(path) for name, path in files.items()})
    has_all = study.data.tags.get(_STATE) == state and has_files(study.info.artifact_uri, files)
    if has_all or not files:
        return
    for name, value in _means(study_dir):
        client.log_metric(run_id, name, value)
    log_artifacts(client, run_id, files)
    client.set_terminated(run_id, "FINISHED")
    client.set_tag(run_id, _STATE, state)


def _means(study_dir: Path) -> Iterator[tuple[str, float]]:
    """Yield the means of a study's tables, named by table, column and row."""
    for path in sorted(study_dir.glob("tables/*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                name = metric_name(f"{row['optimizer_key']} {row['D']} {row['N']}")
                for column in row:
                    if column.endswith(".mean"):
                        yield (
                            f"{path.stem}/{column.removesuffix('.mean')}/{name}",
                            float(row[column]),
                        )


def _import(
    client: "MlflowClient",
    experiment_id: str,
    plan: Plan,
    cell: Cell,
    source: Source,
    run: "Run | None",
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
        for model in models_of(client, experiment_id, f"tags.`{CELL}` = '{cell.id}'"):
            client.delete_logged_model(model.model_id)
        tags = tags_of(cell, plan) | {_TRAINING: training}
        run = client.create_run(experiment_id, source.times()[0], tags, run_name(cell))
        outcomes.append("created")
    has_all = run.data.tags.get(_STATE) == source.state() and has_files(
        run.info.artifact_uri, source.artifacts()
    )
    if has_all:
        return outcomes or ["unchanged"]
    _update(client, run, cell, source)
    return outcomes or ["updated"]


def _update(client: "MlflowClient", run: "Run", cell: Cell, source: Source) -> None:
    """Add what is new, the tags last: after an interruption the same comes again, which changes
    nothing."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, Param, RunTag

    run_id, last_step = run.info.run_id, int(run.data.tags.get(_LAST_STEP, -1))
    params: list[Param] = []
    if _STATE not in run.data.tags:
        params = [Param(*param) for param in params_of(cell.to_json())]
        text = cell.study.data.source
        dataset = Dataset(cell.study.data.name, cell.data_digest, text.kind, text.model_dump_json())
        client.log_inputs(
            run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])]
        )
    log_artifacts(client, run_id, source.artifacts())
    model = None
    if source.run and source.run["model_sha256"]:
        model = link_model(client, run, cell, source)
    # MLflow 3 fails for more than a hundred numbers of a model of which some come again.
    there = {(metric.key, metric.timestamp) for metric in model.metrics or ()} if model else set()
    found = source.metrics(size_of(cell), last_step, str(model.model_id) if model else None)
    metrics = [
        metric
        for metric in found
        if metric.model_id is None or (metric.key, metric.timestamp) not in there
    ]
    if source.run is not None:
        status = "FINISHED" if source.status == "completed" else "FAILED"
        client.set_terminated(run_id, status, end_time=source.times()[1])
    # A resumed training writes some rows again: the last step never goes back.
    steps = (last_step, *(row["step"] for row in source.history[-1:]))
    tags = tags_of_files(cell, source) | {_LAST_STEP: str(max(steps)), _STATE: source.state()}
    while len(metrics) > METRICS_PER_REQUEST:
        client.log_batch(run_id, metrics=metrics[:METRICS_PER_REQUEST])
        metrics = metrics[METRICS_PER_REQUEST:]
    # MLflow writes the tags of a request after its metrics.
    client.log_batch(run_id, metrics, params, [RunTag(name, value) for name, value in tags.items()])


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
            say(f"MLflow does not have everything yet: {reason}")
        pause, said = max(seconds, _PAUSE * (time.process_time() - start)), reason
