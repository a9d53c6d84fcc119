"""What identifies an evaluation besides the model: settings, files of the user's own, libraries.

The workflow asks before there are data, so nothing heavy is imported. A file counts by what is in
it, not by where it is. Not seen: data sets on a hub or in its mirror, and code outside of a task's
folder.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from coupled_adam_bench.store.files import sha256_file
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


def _digest(file: Path) -> str | None:
    """Return the SHA-256 of a file, None for a missing one, which the measurement will name."""
    return sha256_file(file) if file.is_file() else None


def _lists(study: Study) -> dict[str, str | None]:
    lists, folder = study.evaluation.word_similarity, Path(study.paths.word_similarity)
    if lists == "synthetic":  # which the id of the data covers
        return {}
    return {wanted.file: _digest(folder / wanted.file) for wanted in lists}


def _tasks(study: Study) -> dict[str, str | None]:
    """Return the contents of all files beside own tasks: their code and data are among them."""
    found = {}
    for folder in task_folders(study):
        for file in sorted(folder.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                found[str(file.relative_to(folder))] = _digest(file)
    return found


def settings_of(study: Study) -> dict[str, dict[str, Any]]:
    """Return for each stage of a study what can change its numbers, but for the model."""
    evaluation = study.evaluation
    found: dict[str, dict[str, Any]] = {
        "test_loss": evaluation.test_loss.identity(),
        "embeddings": evaluation.identity(exclude={"test_loss", "downstream"})
        | {"files": _lists(study)},
    }
    if evaluation.downstream is not None:
        libraries = {name: version(name) for name in LIBRARIES}
        found["downstream"] = evaluation.downstream.identity() | {
            "files": _tasks(study),
            "libraries": libraries,
        }
    return found
