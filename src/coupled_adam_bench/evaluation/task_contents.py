"""What a downstream task is made of: hashes of its YAML files, of its Python code and of its data, wherever they lie.

Not seen: data on the Hugging Face hub, and files that a task's Python code opens or imports from elsewhere.
"""

import glob
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coupled_adam_bench.evaluation.task_files import (
    LOCAL_READERS,
    Function,
    StandIn,
    TaskFile,
    included_files,
    read_task,
    read_yaml,
)
from coupled_adam_bench.store.cached import sha256_once
from coupled_adam_bench.study.dotted import imported_names

Digest = tuple[str, str]
"""Name of a file, without its folder, and the SHA-256 of its contents."""


def task_contents(task: TaskFile, stand_in: StandIn | None, own_folder: Path | None) -> dict[str, Any]:
    """Return the contents of a task, or of a group of tasks: the group's file and all of the user's own tasks.

    ``ValueError`` for a file that the task names and that is not there.
    """
    tasks = [task.path]
    if task.is_group and own_folder is not None:
        tasks += [path for path in sorted(own_folder.glob("**/*.yaml")) if path != task.path]
    code: dict[Path, None] = {}  # a set that keeps its order
    for yaml in tasks:
        _add_code(yaml, code)
    settings = [stand_in] if stand_in is not None else [read_task(yaml) for yaml in tasks]
    return {
        "name": task.name,
        "files": [_digest(path) for path in code],
        "data": [_data(task, values) for values in settings],
    }


def _digest(path: Path) -> Digest:
    return path.name, sha256_once(path)


def _add_code(path: Path, code: dict[Path, None]) -> None:
    """Add a YAML file, those that it includes, and the Python files of all their functions."""
    if path in code:
        return
    code[path] = None
    for other in included_files(path):
        _add_code(other, code)
    for function in _functions(read_yaml(path)):
        _add_module(path.parent, function.rpartition(".")[0], code)


def _functions(value: Any) -> Iterator[Function]:
    if isinstance(value, Function):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _functions(inner)


def _add_module(folder: Path, name: str, code: dict[Path, None]) -> None:
    """Add the file of a module and those that it imports from its own folder; nothing for one that is not found."""
    file = _module_file(folder, name)
    if file is None or file in code:
        return
    code[file] = None
    for inner in imported_names(file, ""):
        if inner.partition(".")[0] in _beside(file.parent):
            _add_module(file.parent, inner, code)


def _module_file(folder: Path, name: str) -> Path | None:
    """Return where a module is; as lm-eval does, a file in the folder is taken before a package that is installed."""
    if not name:
        return None
    below = Path(*name.split("."))
    package, _, _ = name.partition(".")
    places = [folder]
    spec = None if package in _beside(folder) else importlib.util.find_spec(package)
    if spec is not None and spec.has_location and spec.origin is not None:
        origin = Path(spec.origin)
        places.append(origin.parent.parent if spec.submodule_search_locations else origin.parent)
    for place in places:
        for file in (place / below.with_suffix(".py"), place / below / "__init__.py"):
            if file.is_file():
                return file
    return None


def _beside(folder: Path) -> set[str]:
    return {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}


def _data(task: TaskFile, settings: dict[str, Any]) -> dict[str, list[Digest]]:
    """Return the digests of the local data files of a task by split; empty for data on the hub."""
    options = settings.get("dataset_kwargs") or {}
    source = settings.get("dataset_path")
    if not isinstance(source, str):
        return {}
    if source in LOCAL_READERS:
        folder = Path(options.get("data_dir") or "")
    elif Path(source).exists():
        folder = Path(source)
    else:
        return {}
    if "data_files" not in options:  # a script, or a folder that is read whole
        files = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
        return {"": [_digest(path) for path in files]}
    named = options["data_files"]
    splits = named if isinstance(named, dict) else {"": named}
    return {
        str(split): [one for name in _listed(names) for one in _digests(task, folder, name)]
        for split, names in splits.items()
    }


def _listed(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _digests(task: TaskFile, folder: Path, name: str) -> list[Digest]:
    """Return the digests of the files that one name stands for: a path, a glob, or a URL, which is not fetched."""
    if "://" in name:
        return [(name, "")]
    paths = [Path(path) for path in sorted(glob.glob(str(folder / name), recursive=True))]  # noqa: PTH207
    if not paths:
        raise ValueError(
            f"evaluation.downstream.tasks: {task.name} needs {folder / name}, which does not exist (data_files in "
            f"{task.path}, from the folder in which the study is run)"
        )
    return [_digest(path) for path in paths]
