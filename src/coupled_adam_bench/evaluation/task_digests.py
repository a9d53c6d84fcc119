"""What identifies a task: the hashes of all files that can change its numbers."""

import re
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import Any

from coupled_adam_bench.evaluation.task_files import TaskFile
from coupled_adam_bench.evaluation.task_yaml import (
    LOCAL_READERS,
    included_files,
    read_task,
    with_included,
)
from coupled_adam_bench.store.files import sha256_once
from coupled_adam_bench.store.paths import RESULTS
from embedding_geometry.user_files import check_no_pointer, list_folder

_FUNCTION = re.compile(r"!function\s+([\w.]+)\.\w+")
StandIn = dict[str, Any]
"""The settings of a task that includes another and finds its data elsewhere."""
Digest = tuple[str, str]
"""Name of a file, without its folder, and the SHA-256 of its contents."""


def task_contents(
    task: TaskFile, stand_in: StandIn | None, own_tasks: str | None
) -> dict[str, Any]:
    """Return the hashes of a task's YAML files, Python code and local data, wherever they lie.

    One of the user's own tasks counts with all Python files in its folder, and a group of tasks
    with all of the user's tasks. ``ValueError`` for a file that the task names and that is not
    there.
    """
    own = None if own_tasks is None else Path(own_tasks).resolve()
    yamls = [task.path]
    if task.is_group and own is not None:
        own_yamls = [path for path in list_folder(own).files if path.suffix == ".yaml"]
        yamls += [path for path in own_yamls if path != task.path]
    for path in yamls:
        with_included(path)  # which says what is wrong with the files
    files = [file for path in yamls for file in _files_of_task(path)]
    for path in yamls:
        if own in path.parents:
            files += [file for file in list_folder(path.parent).files if file.suffix == ".py"]
    settings = [read_task(path) | (stand_in or {}) for path in yamls]
    digests = [_digest(path) for path in dict.fromkeys(files)]
    data = [_data(task, values) for values in settings]
    return {"name": task.name, "files": digests, "data": data}


def reads_files(contents: dict[str, Any]) -> bool:
    """Tell by its :func:`task_contents` whether a task reads files of this machine."""
    for data in contents["data"]:
        for named in data.values():
            if any(sha256 for _, sha256 in named):
                return True
    return False


def _digest(path: Path) -> Digest:
    check_no_pointer(path)
    return path.name, sha256_once(path)


def _files_of_task(path: Path) -> Iterator[Path]:
    """Yield a YAML file, those that it includes, and the Python files beside them that they name a
    function of."""
    yield path
    for other in included_files(path):
        yield from _files_of_task(other)
    for module in _FUNCTION.findall(path.read_text(encoding="utf-8")):
        file = path.parent / f"{module.replace('.', '/')}.py"
        if file.is_file():
            yield file


def _data(task: TaskFile, settings: dict[str, Any]) -> dict[str, list[Digest]]:
    """Return the digests of the local data files of a task by split; empty for data on the hub."""
    options, source = settings.get("dataset_kwargs") or {}, settings.get("dataset_path")
    is_reader = source in LOCAL_READERS
    if not isinstance(source, str) or not (is_reader or Path(source).exists()):
        return {}
    folder = Path(options.get("data_dir") or "") if is_reader else Path(source)
    if "data_files" not in options:
        _check_narrow(task, folder)
        return {"": [_digest(path) for path in list_folder(folder).files if path.is_file()]}
    named = options["data_files"]
    splits = named if isinstance(named, dict) else {"": named}
    digests: dict[str, list[Digest]] = {}
    for split, names in splits.items():
        listed = [names] if isinstance(names, str) else names
        digests[str(split)] = [one for name in listed for one in _digests(task, folder, name)]
    return digests


def _check_narrow(task: TaskFile, folder: Path) -> None:
    """Raise ``ValueError`` for a task whose data are a whole folder that holds the study, too."""
    if Path.cwd().is_relative_to(folder.resolve()):
        raise ValueError(
            f"evaluation.downstream.tasks: {task.name} reads all files of {folder.resolve()}, where"
            f" the study and its results lie ({task.path}); name its data, for example"
            " `dataset_kwargs: {data_files: {test: data/items.jsonl}}`"
        )


def _digests(task: TaskFile, folder: Path, name: str) -> list[Digest]:
    """Return the digests of the files that one name stands for: a path, a glob, or a URL, which is
    not fetched."""
    if "://" in name:
        return [(name, "")]
    found = sorted(glob(str(folder / name), recursive=True))  # noqa: PTH207 - the name may be an absolute path
    if not found:
        raise ValueError(
            f"evaluation.downstream.tasks: {task.name} needs {folder / name}, which does not exist"
            f" (data_files in {task.path}, from the folder in which the study is run)"
        )
    results = RESULTS.resolve()
    written = [path for path in found if Path(path).resolve().is_relative_to(results)]
    if written and len(written) < len(found):
        raise ValueError(
            f"evaluation.downstream.tasks: {task.name}: {name!r} takes {written[0]}, which studies"
            f" write, for data (data_files in {task.path}); give a pattern that has only the data"
        )
    return [_digest(Path(path)) for path in found]
