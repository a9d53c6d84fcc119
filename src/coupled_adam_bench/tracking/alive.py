"""What an import finds in MLflow of the one before, and makes where that is no longer there: an
experiment, the run of the study, models and files.

Things are deleted in MLflow, moved with a project, or left behind in another one.
"""

import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.machine.process import environment
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.tracking.described import (
    CELL,
    Source,
    origin_tags,
    run_name,
    tags_to_group_by,
)
from coupled_adam_bench.tracking.place import (
    FIRST_ANSWER,
    TrackingError,
    is_database,
    is_left_behind,
    local_path,
    masked,
)
from coupled_adam_bench.tracking.view import KIND, VIEW, curves

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Run
    from mlflow.tracking import MlflowClient

_STUDY = "coupled_adam_bench.whole_study"
"""The tag that the run of a whole study has, and no other."""
_OF_MODEL = ("README.md", "config.json", "generation_config.json")


def experiment_of(client: "MlflowClient", uri: str, name: str, plan: Plan, results: Path) -> str:
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
        if experiment.tags.get(VIEW) != curves(plan):
            client.set_experiment_tag(experiment.experiment_id, VIEW, curves(plan))
        return str(experiment.experiment_id)
    # Artifacts of a database lie with the results, not in ./mlruns; a server knows its own place.
    location = (here / name).as_uri() if is_database(uri) else None
    tags = {"mlflow.note.content": plan.title or plan.name, VIEW: curves(plan), **KIND}
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


def runs_of(client: "MlflowClient", experiment_id: str, which: str) -> "list[Run]":
    """Return the runs of an experiment that a filter of MLflow finds."""
    return list(client.search_runs([experiment_id], which, max_results=50_000))


def run_of_study(client: "MlflowClient", experiment_id: str, plan: Plan) -> "Run":
    """Return the run of the study, which is created if there is none."""
    for run in runs_of(client, experiment_id, f"tags.`{_STUDY}` = '{plan.name}'"):
        return run
    note = f"{plan.title or plan.name}: {len(plan.cells)} cells, protocol {plan.protocol_label}"
    tags = {_STUDY: plan.name, "study": plan.name, "mlflow.note.content": note, **origin_tags()}
    return client.create_run(experiment_id, run_name=f"study {plan.name}", tags=tags)


def models_of(client: "MlflowClient", experiment_id: str, which: str) -> list[Any]:
    """Return the models in an experiment that a filter of MLflow finds."""
    return list(client.search_logged_models([experiment_id], which))


def has_files(place: str, names: Iterable[str]) -> bool:
    """Tell whether the files of an import are where it put them; a server is believed, since it
    takes a request."""
    folder = local_path(place)
    return folder is None or all((folder / name).exists() for name in names)


def link_model(client: "MlflowClient", run: "Run", cell: Cell, source: Source) -> Any:
    """Return the model of a run, which is made if there is none; one that was cut off is made
    anew."""
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    assert source.run is not None
    files, sha256 = paths.RunFiles(source.folder), source.run["model_sha256"]
    candidates = [files.model / name for name in _OF_MODEL]
    shown = [path for path in candidates if path.exists()]
    for model in models_of(client, run.info.experiment_id, f"source_run_id = '{run.info.run_id}'"):
        is_whole = model.status == LoggedModelStatus.READY and model.tags["sha256"] == sha256
        if is_whole and has_files(model.artifact_location, (path.name for path in shown)):
            return model
        client.delete_logged_model(model.model_id)
    # It is ready only after its files are there, so that one that is cut off is told from it.
    model = client.create_logged_model(
        run.info.experiment_id,
        name=re.sub(r"[/:.%\"']", "_", run_name(cell)),  # MLflow takes no model with these
        source_run_id=run.info.run_id,
        tags={CELL: cell.id, "path": str(files.model), "sha256": sha256},
        params=tags_to_group_by(cell),
        model_type=cell.model.kind,
    )
    for path in shown:
        client.log_model_artifact(model.model_id, str(path))
    client.log_outputs(run.info.run_id, [LoggedModelOutput(model.model_id, step=cell.steps)])
    return client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)


def log_artifacts(client: "MlflowClient", run_id: str, files: dict[str, Path]) -> None:
    """Upload files in one go under the given names."""
    with tempfile.TemporaryDirectory() as staging:
        for name, path in files.items():
            (Path(staging) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, Path(staging) / name)
        client.log_artifacts(run_id, staging)
