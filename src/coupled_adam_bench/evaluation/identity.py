"""What identifies an evaluation besides the model: settings, files of the user's own, libraries.

The workflow asks before there are data, so nothing heavy is imported. A file counts by what is in
it, not by where it is. Not seen: data sets on a hub or in its mirror, and code outside of a task's
folder.
"""

from collections.abc import Iterable
from importlib.metadata import version
from os.path import relpath
from pathlib import Path
from typing import Any

from coupled_adam_bench.store.files import sha256_file
from coupled_adam_bench.study.base import meant
from coupled_adam_bench.study.catalogue.presets import PAPER_TASKS
from coupled_adam_bench.study.study import Study

LIBRARIES = ("lm_eval", "tokenizers", "datasets")
"""What decides which tokens of a task are scored, and how."""
OLDER_TASKS = Path(__file__).parents[3] / "workflow/tasks_0_4_3"
"""The prompts of lm-eval 0.4.3, of the tasks that have changed since."""


def task_folders(study: Study) -> list[Path]:
    """Return the folders whose tasks take the place of lm-eval's; a later one goes before."""
    chosen = study.evaluation.downstream
    older = [OLDER_TASKS] if chosen is not None and chosen.task_versions == "0.4.3" else []
    own = [] if study.paths.tasks is None else [Path(study.paths.tasks)]
    return [*older, *own]


def task_manager(names: Iterable[str], folders: list[Path]) -> Any:
    """Return lm-eval's manager of tasks, in which those of ``folders`` take the place of its own.

    To import it takes a second, and its index of what it ships ten: that is made only for a name
    that the folders do not have.
    """
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=folders, include_defaults=False)
    if {*names} <= {*manager.all_subtasks}:
        return manager
    return TaskManager(include_path=folders)


def check_tasks(study: Study) -> None:
    """Raise ``ValueError`` for a task that neither the study's folders nor lm-eval have.

    The trial would tell it, too, but only after the text is prepared, which may take hours.
    """
    chosen = study.evaluation.downstream
    if chosen is None or chosen.tasks == "synthetic":
        return
    if names := {*chosen.tasks} - {*PAPER_TASKS}:
        known = task_manager(names, task_folders(study)).all_subtasks
        for name in names - {*known}:
            raise ValueError(
                f"evaluation.downstream.tasks: lm-eval has no task {name}{meant(name, known)}"
            )


def _contents(folder: Path, files: Iterable[Path]) -> dict[str, str | None]:
    """Return the SHA-256 of each file by its place in the folder, None for one that is missing."""
    return {relpath(file, folder): sha256_file(file) if file.is_file() else None for file in files}


def _of_tasks(folder: Path) -> dict[str, str | None]:
    """Return what lies in a folder of tasks: their data and code are beside them."""
    files = (file for file in sorted(folder.rglob("*")) if "__pycache__" not in file.parts)
    return _contents(folder, filter(Path.is_file, files))


def settings_of(study: Study) -> dict[str, dict[str, Any]]:
    """Return for each stage of a study what can change its numbers, but for the model."""
    evaluation, downstream = study.evaluation, study.evaluation.downstream
    lists, folder = evaluation.word_similarity, Path(study.paths.word_similarity)
    # The id of the data covers the sets of the generated language.
    own = [] if lists == "synthetic" else [folder / wanted.file for wanted in lists]
    found = {
        "test_loss": evaluation.test_loss.identity(),
        "embeddings": evaluation.identity(exclude={"test_loss", "downstream"})
        | {"files": _contents(folder, own)},
    }
    if downstream is not None:
        files = [*map(_of_tasks, task_folders(study))]
        libraries = {name: version(name) for name in LIBRARIES}
        found["downstream"] = downstream.identity() | {"files": files, "libraries": libraries}
    return found
