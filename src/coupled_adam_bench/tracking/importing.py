"""Copies a study's files into MLflow; nothing in the pipeline reads them back.

Training only appends to ``history.jsonl``, so a slow or absent server cannot disturb it. An import adds what is new
since the last one: a tag of each MLflow run says what it already has. The run of the study is the parent of those of
its cells, and has the tables, figures and report.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import digest, sha256_file
from coupled_adam_bench.store.stored import measured_cells
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.tracking.client import first_answer, mlflow_settings, open_client
from coupled_adam_bench.tracking.models import Models
from coupled_adam_bench.tracking.records import (
    CELL,
    IMPORTED,
    Point,
    Source,
    note_of,
    origin_tags,
    params_of,
    parse_imported,
    read_source,
    run_name,
    tags_of,
    tags_of_run,
)
from coupled_adam_bench.tracking.store import make_anew, make_whole, only_importer
from coupled_adam_bench.tracking.uri import (
    DamagedDatabaseError,
    Destination,
    TrackingError,
    destination,
    errors_as_sentences,
    refusal,
)

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

METRICS_PER_REQUEST = 800  # MLflow takes 1000 of metrics, params and tags together
_STUDY = "coupled_adam_bench.parent_of"
"""The tag that the run of a whole study has, and no other."""
_PARENT = "mlflow.parentRunId"


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
    with only_importer(place, runs.parent), mlflow_settings(place):
        if place.database is not None:
            with errors_as_sentences(place):
                make_whole(place)
        try:
            return _import_all(plan, place, name, runs, study_dir)
        except DamagedDatabaseError as error:  # in its values, which nothing sees before they are read
            if not place.ours:
                raise
            with errors_as_sentences(place):
                make_anew(place, str(error))
            return _import_all(plan, place, name, runs, study_dir)


def _import_all(plan: Plan, place: Destination, name: str, runs: Path, study_dir: Path | None) -> dict[str, Any]:
    with errors_as_sentences(place):
        client = open_client(place)
        experiment_id = _experiment(client, name, place, plan)
        known = {run.data.tags[CELL]: run for run in _runs(client, experiment_id, CELL)}
        parent = _parent(client, experiment_id, plan)
    models = Models(client, experiment_id)
    counts = dict.fromkeys(("created", "updated", "unchanged", "superseded", "waiting"), 0)
    for cell, measurements in measured_cells(plan, runs):
        outcomes = ["waiting"]
        if source := read_source(runs / cell.id, measurements):
            with errors_as_sentences(place):
                outcomes = _import(client, parent, plan, cell, source, known, models)
        for outcome in outcomes:
            counts[outcome] += 1
    if study_dir is not None:
        with errors_as_sentences(place):
            _update_parent(client, parent, study_dir)
    return {"experiment": name, "experiment_id": experiment_id, **counts}


def _experiment(client: "MlflowClient", name: str, place: Destination, plan: Plan) -> str:
    """Return the id of the experiment, which is created if there is none."""
    experiment = first_answer(place, lambda: client.get_experiment_by_name(name))
    if experiment is None:
        # Artifacts of a local database lie beside it, not in ./mlruns; a server knows its own place.
        location = place.database and (place.database.resolve().parent / "mlflow-artifacts" / name).as_uri()
        tags = {"mlflow.note.content": plan.title or plan.name}
        return str(first_answer(place, lambda: client.create_experiment(name, artifact_location=location, tags=tags)))
    if experiment.lifecycle_stage == "deleted":
        raise TrackingError(
            f"experiment: {name!r} is deleted in MLflow; restore it there, or remove it with `mlflow gc`"
        )
    if not experiment.experiment_id:
        raise refusal(place.setting, f"what answers at {place.shown} is no MLflow server")
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
    found = [study_dir / "manifest.json", *study_dir.glob("*.csv")]
    found += [path for folder in ("tables", "figures", "report") for path in study_dir.glob(f"{folder}/[!.]*")]
    files = [path.relative_to(study_dir).as_posix() for path in sorted(found) if path.is_file()]
    imported = digest({name: sha256_file(study_dir / name) for name in files})
    if not files or parent.data.tags.get(IMPORTED) == imported:
        return
    _log_artifacts(client, parent.info.run_id, {name: study_dir / name for name in files})
    client.set_terminated(parent.info.run_id, "FINISHED")
    client.set_tag(parent.info.run_id, IMPORTED, imported)


def _import(
    client: "MlflowClient",
    parent: "Run",
    plan: Plan,
    cell: Cell,
    source: Source,
    known: "dict[str, Run]",
    models: Models,
) -> list[str]:
    """Bring the run of one cell up to date and return what was done."""
    outcomes = []
    run = known.get(cell.id)
    if run is not None and not source.continues(parse_imported(run.data.tags)):
        client.set_tag(run.info.run_id, "coupled_adam_bench.superseded", "true")
        client.delete_run(run.info.run_id)
        models.delete(run.info.run_id)
        outcomes.append("superseded")
        run = None
    if run is None:
        outcomes.append("created")
        begun = {_PARENT: parent.info.run_id, IMPORTED: json.dumps(source.begun())}
        run = client.create_run(
            parent.info.experiment_id,
            start_time=source.times()[0],
            run_name=run_name(cell),
            tags=tags_of(cell, plan) | begun,
        )
    elif parse_imported(run.data.tags) == source.progress(parse_imported(run.data.tags)):
        return ["unchanged"]
    else:
        outcomes.append("updated")
    _update(client, run, cell, source, models)
    return outcomes


def _update(client: "MlflowClient", run: "Run", cell: Cell, source: Source, models: Models) -> None:
    """Add what is new, the tags last: after an interruption the same comes again, which changes nothing."""
    from mlflow.entities import Param, RunTag

    run_id, imported = run.info.run_id, parse_imported(run.data.tags)
    new = {"mlflow.note.content": note_of(cell, source), IMPORTED: json.dumps(source.progress(imported))}
    is_first = imported == source.begun()
    if is_first:
        _log_dataset(client, run_id, cell)
    _log_artifacts(client, run_id, source.artifacts())
    model_id = models.link(run, cell, source) if source.model_sha256 is not None else None
    if source.run is not None:
        new |= tags_of_run(source.run, source.folder)
        status = "FINISHED" if source.status == "completed" else "FAILED"
        client.set_terminated(run_id, status, end_time=source.times()[1])
    points = source.new_points(imported)
    while len(points) > METRICS_PER_REQUEST:
        client.log_batch(run_id, metrics=_metrics(points[:METRICS_PER_REQUEST], model_id))
        points = points[METRICS_PER_REQUEST:]
    # Within a request the tags come last.
    client.log_batch(
        run_id,
        metrics=_metrics(points, model_id),
        params=[Param(name, value) for name, value in params_of(cell)] if is_first else [],
        tags=[RunTag(name, value) for name, value in new.items()],
    )


def _metrics(points: Sequence[Point], model_id: str | None) -> list[Any]:
    from mlflow.entities import Metric

    return [
        Metric(point.name, point.value, point.timestamp, point.step, model_id if point.of_model else None)
        for point in points
    ]


def _log_dataset(client: "MlflowClient", run_id: str, cell: Cell) -> None:
    """Name the training data of a run, with its hash and where it comes from."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = cell.study.data.source
    dataset = Dataset(cell.study.data.name, cell.data_digest, source.kind, source.model_dump_json())
    client.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])


def _log_artifacts(client: "MlflowClient", run_id: str, files: dict[str, Path]) -> None:
    """Upload files in one go under the given names."""
    with tempfile.TemporaryDirectory() as staging:
        for name, path in files.items():
            (Path(staging) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, Path(staging) / name)
        client.log_artifacts(run_id, staging)
