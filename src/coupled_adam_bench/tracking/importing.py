"""Copies a study's files into MLflow; nothing in the pipeline reads them back.

Training only appends to ``history.jsonl``, so a slow or absent server cannot disturb it. An import adds what is new
since the last one: a tag of each MLflow run says what it already has. The run of the study is the parent of those of
its cells, and has the tables, figures and report. MLflow's page "Models" lists the trained models with the numbers of
their evaluations; their weights stay where they are, and a tag says where.
"""

import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import digest, sha256_file
from coupled_adam_bench.store.locks import folder_lock, is_held
from coupled_adam_bench.store.stored import measured_cells
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.plan import Plan, load_plan
from coupled_adam_bench.tracking.records import (
    CELL,
    IMPORTED,
    Source,
    note_of,
    origin_tags,
    params_of,
    parse_imported,
    read_source,
    run_name,
    tags_of,
    tags_of_run,
    tags_to_group_by,
)
from coupled_adam_bench.tracking.uri import (
    Destination,
    TrackingError,
    destination,
    errors_as_sentences,
    first_answer,
    mlflow_settings,
    open_client,
    set_aside,
)

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

METRICS_PER_REQUEST = 800  # MLflow takes 1000 of metrics, params and tags together
LOCK = ".mlflow-live.lock"
_STUDY = "coupled_adam_bench.parent_of"
"""The tag that the run of a whole study has, and no other."""
_OF_STUDY = ("*.csv", "*.json", "tables/**/*", "figures/**/*", "report/**/*")
"""The files of a study's folder that its run is given."""
_NOT_OF_STUDY = ("plan.json", "mlflow.json")
_OF_MODEL = ("README.md", "config.json", "generation_config.json")
_PAUSE = 20  # times the CPU time of an import is the least pause after it


def import_study(
    plan: Plan,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    runs: Path = paths.RUNS,
    study_dir: Path | None = None,
) -> dict[str, Any]:
    """Import a study and every cell that has begun training as runs of an MLflow experiment, adding only what is new.

    ``tracking_uri`` is a server or a database (default: ``MLFLOW_TRACKING_URI``, else ``results/mlflow.db``),
    ``experiment`` a name (default: the study's). ``study_dir`` has the tables, figures and report, if they are written.
    A cell trained anew gets a new run; its old one is marked and deleted. Returns the experiment's name and id, and how
    many cells were ``created``, ``updated``, ``unchanged``, ``superseded`` (created again) and ``waiting`` (not yet in
    training). Raises ``ValueError`` for a broken file, and within seconds for a server that does not answer.
    """
    place = destination(tracking_uri)
    name = experiment or plan.name
    lock = runs.parent / ".mlflow.lock"  # two imports of these results into a server, or any two into a database file
    if place.database is not None:
        lock = place.database.with_name(f".{place.database.name}.lock")
    waiting = f"waiting for another import into {place.shown}"
    with errors_as_sentences(place), folder_lock(lock.parent, lock.name, waiting), mlflow_settings(place):
        try:
            return _import_all(plan, place, name, runs, study_dir)
        except Exception as error:
            if not set_aside(place, error):
                raise
        return _import_all(plan, place, name, runs, study_dir)


def _import_all(plan: Plan, place: Destination, name: str, runs: Path, study_dir: Path | None) -> dict[str, Any]:
    client = open_client(place)
    experiment_id = _experiment(client, name, place, plan)
    known = {run.data.tags[CELL]: run for run in _runs(client, experiment_id, CELL)}
    parent = _parent(client, experiment_id, plan)
    counts = dict.fromkeys(("created", "updated", "unchanged", "superseded", "waiting"), 0)
    for cell, measurements in measured_cells(plan, runs):
        outcomes = ["waiting"]
        if source := read_source(runs / cell.id, measurements):
            outcomes = _import(client, parent, plan, cell, source, known.get(cell.id))
        for outcome in outcomes:
            counts[outcome] += 1
    if study_dir is not None:
        _update_parent(client, parent, study_dir)
    return {"experiment": name, "experiment_id": experiment_id, **counts}


def _experiment(client: "MlflowClient", name: str, place: Destination, plan: Plan) -> str:
    """Return the id of the experiment, which is created if there is none."""
    experiment = first_answer(place, lambda: client.get_experiment_by_name(name))
    if experiment is None:
        # Artifacts of a local database lie beside it, not in ./mlruns; a server knows its own place.
        location = place.database and (place.database.parent / "mlflow-artifacts" / name).as_uri()
        tags = {"mlflow.note.content": plan.title or plan.name}
        return str(client.create_experiment(name, artifact_location=location, tags=tags))
    if experiment.lifecycle_stage == "deleted":
        raise TrackingError(
            f"experiment: {name!r} is deleted in MLflow; restore it there, or remove it with `mlflow gc`"
        )
    if not experiment.experiment_id:
        raise place.error(f"what answers at {place.shown} is no MLflow server")
    return str(experiment.experiment_id)


def _runs(client: "MlflowClient", experiment_id: str, tag: str) -> "Iterator[Run]":
    """Yield the runs of the experiment that have a tag of ours."""
    token = None
    while True:
        page = client.search_runs([experiment_id], f"tags.`{tag}` != ''", max_results=1000, page_token=token)
        yield from page
        if not (token := page.token):
            return


def _parent(client: "MlflowClient", experiment_id: str, plan: Plan) -> "Run":
    """Return the run of the study, which is created if there is none."""
    for run in _runs(client, experiment_id, _STUDY):
        if run.data.tags[_STUDY] == plan.name:
            return run
    note = f"{plan.title or plan.name}: {len(plan.cells)} cells, protocol {plan.protocol_label}"
    tags = {_STUDY: plan.name, "study": plan.name, "mlflow.note.content": note}
    return client.create_run(experiment_id, run_name=f"study {plan.name}", tags=tags | origin_tags())


def _update_parent(client: "MlflowClient", parent: "Run", study_dir: Path) -> None:
    """Upload what reporting has written, if it is not there yet; only then the run of the study is finished."""
    found = {path.relative_to(study_dir).as_posix(): path for glob in _OF_STUDY for path in study_dir.glob(glob)}
    files = {name: path for name, path in sorted(found.items()) if path.is_file() and name not in _NOT_OF_STUDY}
    imported = digest({name: sha256_file(path) for name, path in files.items()})
    if not files or parent.data.tags.get(IMPORTED) == imported:
        return
    _log_artifacts(client, parent.info.run_id, files)
    client.set_terminated(parent.info.run_id, "FINISHED")
    client.set_tag(parent.info.run_id, IMPORTED, imported)


def _import(
    client: "MlflowClient", parent: "Run", plan: Plan, cell: Cell, source: Source, run: "Run | None"
) -> list[str]:
    """Bring the run of one cell up to date and return what was done."""
    outcomes = []
    if run is not None and not source.continues(parse_imported(run.data.tags)):
        client.set_tag(run.info.run_id, "coupled_adam_bench.superseded", "true")
        client.delete_run(run.info.run_id)
        for model in _models(client, run):
            client.delete_logged_model(model.model_id)
        outcomes.append("superseded")
        run = None
    if run is None:
        outcomes.append("created")
        tags = {**tags_of(cell, plan), "mlflow.parentRunId": parent.info.run_id}
        run = client.create_run(parent.info.experiment_id, source.times()[0], tags, run_name(cell))
    elif parse_imported(run.data.tags) == source.progress(parse_imported(run.data.tags)):
        return ["unchanged"]
    else:
        outcomes.append("updated")
    _update(client, run, cell, source)
    return outcomes


def _update(client: "MlflowClient", run: "Run", cell: Cell, source: Source) -> None:
    """Add what is new, the tags last: after an interruption the same comes again, which changes nothing."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag

    run_id, imported = run.info.run_id, parse_imported(run.data.tags)
    params: dict[str, str] = {}
    new = {"mlflow.note.content": note_of(cell, source), IMPORTED: json.dumps(source.progress(imported))}
    if not imported:
        params, text = params_of(cell.to_json()), cell.study.data.source
        dataset = Dataset(cell.study.data.name, cell.data_digest, text.kind, text.model_dump_json())
        client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])
    _log_artifacts(client, run_id, source.artifacts())
    model_id = _link_model(client, run, cell, source) if source.model_sha256 is not None else None
    if source.run is not None:
        new |= tags_of_run(source.run, source.folder)
        status = "FINISHED" if source.status == "completed" else "FAILED"
        client.set_terminated(run_id, status, end_time=source.times()[1])
    metrics = [
        Metric(point.name, point.value, point.timestamp, point.step, model_id if point.of_model else None)
        for point in source.new_points(imported)
    ]
    while len(metrics) > METRICS_PER_REQUEST:
        client.log_batch(run_id, metrics=metrics[:METRICS_PER_REQUEST])
        metrics = metrics[METRICS_PER_REQUEST:]
    # Within a request the tags come last.
    client.log_batch(
        run_id,
        metrics=metrics,
        params=[Param(name, value) for name, value in params.items()],
        tags=[RunTag(name, value) for name, value in new.items()],
    )


def _models(client: "MlflowClient", run: "Run") -> list[Any]:
    """Return the models of a run: one, or none."""
    return list(client.search_logged_models([run.info.experiment_id], f"source_run_id = '{run.info.run_id}'"))


def _link_model(client: "MlflowClient", run: "Run", cell: Cell, source: Source) -> str:
    """Return the id of the model of a run, which is made if there is none, and linked if that was cut off."""
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    files = paths.RunFiles(source.folder)
    model = next(iter(_models(client, run)), None) or client.create_logged_model(
        run.info.experiment_id,
        name=re.sub(r"[^\w-]", "-", cell.id),  # which MLflow takes
        source_run_id=run.info.run_id,
        tags={CELL: cell.id, "path": str(files.model), "sha256": str(source.model_sha256)},
        params=tags_to_group_by(cell),
        model_type=cell.model.architecture,
    )
    if model.status != LoggedModelStatus.READY:
        with tempfile.TemporaryDirectory() as staging:
            for path in filter(Path.exists, (files.model / name for name in _OF_MODEL)):
                shutil.copy(path, staging)
            client.log_model_artifacts(model.model_id, staging)
        if model.model_id not in [output.model_id for output in (run.outputs.model_outputs if run.outputs else [])]:
            client.log_outputs(run.info.run_id, [LoggedModelOutput(model.model_id, step=cell.steps)])
        client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    return str(model.model_id)


def _log_artifacts(client: "MlflowClient", run_id: str, files: dict[str, Path]) -> None:
    """Upload files in one go under the given names."""
    with tempfile.TemporaryDirectory() as staging:
        for name, path in files.items():
            (Path(staging) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, Path(staging) / name)
        client.log_artifacts(run_id, staging)


def follow_study(plan_file: Path, seconds: float) -> None:
    """Import the study of a plan every so many ``seconds``, until standard input ends; never returns.

    The workflow holds the other end of the input. However the workflow ends, the kernel closes that end, and this
    process ends, even within a request that hangs: the next import adds what is missing.
    """
    os.nice(19)
    Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
    pause, said = seconds, ""
    with folder_lock(plan_file.parent, LOCK):
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


def end_live_import(study_dir: Path) -> None:
    """End the import beside the jobs of a study, if there is one on this machine."""
    try:
        holder = (study_dir / LOCK).read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    found = re.fullmatch(rf"pid (\d+) on {re.escape(os.uname().nodename)}\n", holder)
    # The kernel drops the lock with its process: while it is held, the process is the one that wrote its number.
    if found and is_held(study_dir, LOCK):
        os.kill(int(found[1]), signal.SIGTERM)
