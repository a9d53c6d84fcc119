"""Links the trained models of a study to their runs in MLflow; their weights stay where they are.

MLflow's page "Models" lists them with the numbers of their evaluations. The model there has two small files, its card
and its configuration, and its tags say in which folder the weights lie and which SHA-256 they have.
"""

import re
import tempfile
from functools import cached_property
from pathlib import Path
from shutil import copy
from typing import TYPE_CHECKING

from coupled_adam_bench.store.paths import RunFiles
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.tracking.records import CELL, Source, tags_to_group_by

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel, Run
    from mlflow.tracking import MlflowClient

_SMALL_FILES = ("README.md", "config.json", "generation_config.json")


class Models:
    """The models of an experiment in MLflow, which are asked for once, when the first is needed."""

    def __init__(self, client: "MlflowClient", experiment_id: str) -> None:
        self._client = client
        self._experiment_id = experiment_id

    @cached_property
    def _by_run(self) -> "dict[str, LoggedModel]":
        """Each model by the id of its run."""
        found: dict[str, LoggedModel] = {}
        token = None
        while True:
            page = self._client.search_logged_models([self._experiment_id], max_results=50, page_token=token)
            found |= {model.source_run_id: model for model in page if model.source_run_id}
            if not (token := page.token):
                return found

    def link(self, run: "Run", cell: Cell, source: Source) -> str:
        """Return the id of the model of a run, which is made if there is none, and linked if that was cut off."""
        from mlflow.entities import LoggedModelOutput, LoggedModelStatus

        run_id, files = run.info.run_id, RunFiles(source.folder)
        if run_id not in self._by_run:
            self._by_run[run_id] = self._client.create_logged_model(
                self._experiment_id,
                name=re.sub(r"[^\w-]", "-", cell.id),  # which MLflow takes
                source_run_id=run_id,
                tags={CELL: cell.id, "path": str(files.model), "sha256": str(source.model_sha256)},
                params=tags_to_group_by(cell),
                model_type=cell.model.architecture,
            )
        model = self._by_run[run_id]
        if model.status == LoggedModelStatus.READY:
            return str(model.model_id)
        with tempfile.TemporaryDirectory() as staging:
            for name in _SMALL_FILES:
                if (files.model / name).exists():
                    copy(files.model / name, Path(staging) / name)
            self._client.log_model_artifacts(model.model_id, staging)
        linked = [output.model_id for output in run.outputs.model_outputs] if run.outputs else []
        if model.model_id not in linked:
            self._client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=cell.steps)])
        self._by_run[run_id] = self._client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
        return str(model.model_id)

    def delete(self, run_id: str) -> None:
        """Delete the model of a run that is deleted."""
        if run_id in self._by_run:
            self._client.delete_logged_model(self._by_run.pop(run_id).model_id)
