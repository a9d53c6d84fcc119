"""Task files of the lm-evaluation-harness, found and rewritten without importing it (its import takes seconds).

A task is a YAML file; ``!function`` values are Python functions beside it and stay untouched here.
"""

import difflib
import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

PAPER_TASK_FILES = {
    "hellaswag": "hellaswag/hellaswag.yaml",
    "winogrande": "winogrande/default.yaml",
    "arc_easy": "arc/arc_easy.yaml",
    "arc_challenge": "arc/arc_challenge.yaml",
    "truthfulqa_mc2": "truthfulqa/truthfulqa_mc2.yaml",
    "lambada_openai": "lambada/lambada_openai.yaml",
    "race": "race/race.yaml",
}
"""Where lm-eval has the paper's tasks: spares reading its 14,000 files. A task that has moved is searched for."""
_NAME = re.compile(r"""^["']?(task|group)["']?:[ \t]*["']?([^\s"'#\[]+)""", re.MULTILINE)
_LOCAL_READERS = ("arrow", "csv", "json", "parquet", "text")
_SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")


@dataclass(frozen=True)
class TaskFile:
    """A task, or a group of tasks, and the file that defines it."""

    name: str
    path: Path
    is_group: bool


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads ``!function module.name`` as that string."""


_Loader.add_constructor("!function", lambda _, node: node.value)


def find_tasks(names: Iterable[str], user_folder: Path | None) -> list[TaskFile]:
    """Return the files of tasks by name, those of ``user_folder`` before lm-eval's own.

    ``ValueError`` that lists every unknown name with its near matches.
    """
    own = _scan(user_folder) if user_folder is not None else {}
    found = {name: own[name] if name in own else _paper_task(name) for name in names}
    if None in found.values():
        known = _scan(harness_tasks()) | own
        found = {name: task or known.get(name) for name, task in found.items()}
        problems = []
        for name in (name for name, task in found.items() if task is None):
            near = difflib.get_close_matches(name, known, n=5)
            problems.append(f"no task {name!r}" + (f"; did you mean {', '.join(near)}?" if near else ""))
        if problems:
            raise ValueError("evaluation.downstream.tasks: " + "; ".join(problems))
    return [task for task in found.values() if task is not None]


def harness_tasks() -> Path:
    """Return the folder of lm-eval's tasks, without importing lm-eval."""
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("lm_eval is not installed: pip install 'coupled-adam-bench[pipeline]'")
    return Path(spec.submodule_search_locations[0]) / "tasks"


def read_task(path: Path) -> dict[str, Any]:
    """Return a task's settings with those of the files it includes, as lm-eval merges them."""
    try:
        with path.open("rb") as file:
            task = yaml.load(file, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(task, dict):
        raise ValueError(f"{path}: not a task: a mapping is expected")
    included = task.pop("include", [])
    merged: dict[str, Any] = {}
    for other in [included] if isinstance(included, str) else included:
        merged |= read_task(path.parent / other)
    return merged | task


def mirrored_task(task: TaskFile, mirror: Path, num_fewshot: int) -> dict[str, Any] | None:
    """Return a task that includes ``task`` and reads its data from ``<mirror>/<org>/<dataset>/<config>/<split>.jsonl``.

    None if the task does not come from the hub. A split without a file is switched off, unless it is the one that is
    evaluated or the one that examples are drawn from: then ``ValueError`` says which file is missing.
    """
    if task.is_group:
        raise ValueError(f"paths.hub_mirror: {task.name} is a group of tasks; name its tasks one by one")
    stock = read_task(task.path)
    if "dataset_path" not in stock or stock["dataset_path"] in _LOCAL_READERS:
        return None
    folder = mirror / stock["dataset_path"] / (stock.get("dataset_name") or "default")
    splits = {kind: stock[kind] for kind in _SPLITS if stock.get(kind) is not None}
    files = {split: folder / f"{split}.jsonl" for split in splits.values()}
    needed = [splits[kind] for kind in ("test_split", "validation_split") if kind in splits][:1]
    if num_fewshot > 0:
        needed += [splits[kind] for kind in ("fewshot_split", "training_split") if kind in splits][:1]
    if missing := [str(files[split]) for split in needed if not files[split].is_file()]:
        raise ValueError(f"paths.hub_mirror: {task.name} needs {' and '.join(missing)}")
    present = {split: str(path.resolve()) for split, path in files.items() if path.is_file()}
    absent = {kind: None for kind, split in splits.items() if split not in present}
    return {**_include(task, present), "dataset_path": "json", "dataset_name": None, **absent}


def generated_tasks(folder: Path) -> list[tuple[TaskFile, dict[str, Any]]]:
    """Return the tasks of the generated language, each with one that includes it and finds the data files beside it."""
    tasks = []
    for path in sorted(folder.glob("*.yaml")):
        values = read_task(path)
        task = TaskFile(values["task"], path.resolve(), False)
        names = values["dataset_kwargs"]["data_files"].items()
        tasks.append((task, _include(task, {split: str(task.path.parent / name) for split, name in names})))
    if not tasks:
        raise ValueError(f"{folder}: no tasks; run the data stage")
    return tasks


def user_folder(setting: str | None) -> Path | None:
    """Return ``paths.tasks`` as a path."""
    return None if setting is None else Path(setting).resolve()


def _include(task: TaskFile, data_files: dict[str, str]) -> dict[str, Any]:
    return {"include": str(task.path), "task": task.name, "dataset_kwargs": {"data_files": data_files}}


def _paper_task(name: str) -> TaskFile | None:
    if name not in PAPER_TASK_FILES:
        return None
    path = harness_tasks() / PAPER_TASK_FILES[name]
    return TaskFile(name, path, False) if path.is_file() else None


@cache
def _scan(folder: Path) -> dict[str, TaskFile]:
    """Return all tasks and groups below a folder by name; reads text, parses nothing."""
    if not folder.is_dir():
        raise ValueError(f"paths.tasks: {folder} is not a folder")
    found: dict[str, TaskFile] = {}
    for path in sorted(folder.glob("**/*.yaml")):
        for kind, name in _NAME.findall(path.read_text(encoding="utf-8", errors="replace")):
            found.setdefault(name, TaskFile(name, path, kind == "group"))
    return found
