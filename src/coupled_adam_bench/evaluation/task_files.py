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

from coupled_adam_bench.data.check import TASKS
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import cached_by_file
from coupled_adam_bench.study.config import Study

PAPER_TASK_FILES = {
    "hellaswag": "hellaswag/hellaswag.yaml",
    "winogrande": "winogrande/default.yaml",
    "arc_easy": "arc/arc_easy.yaml",
    "arc_challenge": "arc/arc_challenge.yaml",
    "truthfulqa_mc2": "truthfulqa/truthfulqa_mc2.yaml",
    "lambada_openai": "lambada/lambada_openai.yaml",
    "race": "race/race.yaml",
}
"""The places of the paper's tasks in lm-eval, so that its 14,000 files need not be read. Others are searched for."""
OLDER_TASKS = {"0.4.3": Path(__file__).parent / "tasks_v0_4_3"}
"""Our files of those tasks of the paper whose prompts or scores differ in an older lm-eval, by its version."""
_NAME = re.compile(r"""^["']?(task|group)["']?:[ \t]*["']?([^\s"'#\[]+)""", re.MULTILINE)
_MOST_INCLUDES = 8
LOCAL_READERS = ("arrow", "csv", "json", "parquet", "text")
_SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")


@dataclass(frozen=True)
class TaskFile:
    """A task, or a group of tasks, and the file that defines it."""

    name: str
    path: Path
    is_group: bool


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads ``!function module.name`` as that string."""


_Loader.add_constructor("!function", lambda _, node: str(node.value))

StandIn = dict[str, Any]
"""The settings of a task that includes another and finds its data elsewhere."""


def plan_tasks(study: Study, data_id: str) -> list[tuple[TaskFile, StandIn | None]]:
    """Return the study's tasks, each with the task that stands in for it, None for one that lm-eval loads as it is."""
    downstream = study.evaluation.downstream_of_files
    if downstream is None:
        return [*generated_tasks(paths.data_dir(data_id) / TASKS)]
    tasks = find_tasks(downstream.tasks, user_folder(study.paths.tasks), downstream.task_versions)
    if study.paths.hub_mirror is None:
        return [(task, None) for task in tasks]
    mirror = Path(study.paths.hub_mirror)
    return [(task, mirrored_task(task, mirror, downstream.num_fewshot)) for task in tasks]


def find_tasks(names: Iterable[str], user_folder: Path | None, versions: str = "installed") -> list[TaskFile]:
    """Return the files of tasks by name: those of ``user_folder`` first, then of lm-eval in these ``versions``.

    ``ValueError`` that lists every unknown name with its near matches.
    """
    own = _scan(user_folder) if user_folder is not None else {}
    older = _scan(OLDER_TASKS[versions]) if versions in OLDER_TASKS else {}
    found = {name: own.get(name) or older.get(name) or _paper_task(name) for name in names}
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


def read_task(path: Path, including: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return a task's settings with those of the files it includes, as lm-eval merges them.

    ``including`` are the files that led to this one; a file that includes itself raises ``ValueError``.
    """
    merged: dict[str, Any] = {}
    for other in included_files(path):
        if other in (path.resolve(), *including):
            raise ValueError(f"{path}: includes {other}, which includes it")
        if len(including) == _MOST_INCLUDES:
            raise ValueError(f"{path}: {_MOST_INCLUDES} files lead to it by `include`, which is the most; include less")
        merged |= read_task(other, (path.resolve(), *including))
    return merged | {key: value for key, value in read_yaml(path).items() if key != "include"}


def included_files(path: Path) -> list[Path]:
    """Return the files that a task's YAML file includes itself, in its order."""
    included = read_yaml(path).get("include", [])
    names = [included] if isinstance(included, str) else included
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path}: include: {str(included)[:100]} must be the name of a file, or a list of names")
    return [(path.parent / name).resolve() for name in dict.fromkeys(names)]


def _contents(path: Path) -> str:
    """Return the text of a task's file; ``ValueError`` if it is none, or is not UTF-8."""
    if not path.is_file():
        raise ValueError(f"{path}: no such task file")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error}); save it as UTF-8") from None


@cached_by_file
def read_yaml(path: Path) -> dict[str, Any]:
    """Read a task's YAML file without what it includes; the result is cached, so callers must not change it."""
    loader = _Loader(_contents(path))
    try:
        task = loader.get_single_data()
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not valid YAML: {error}") from None
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(task, dict):
        raise ValueError(f"{path}: not a task: a mapping is expected")
    return task


@dataclass(frozen=True)
class HubData:
    """The data on the hub that a task reads."""

    dataset: str
    config_name: str | None
    splits: dict[str, str]
    """By kind of split its name, for those that the task has."""
    needed: tuple[str, ...]
    """The split that is evaluated, and the one from which examples are drawn, if there are examples."""

    def file(self, mirror: Path, split: str) -> Path:
        """Return where a split lies in the folder ``paths.hub_mirror``."""
        return mirror / self.dataset / (self.config_name or "default") / f"{split}.jsonl"


def hub_data(task: TaskFile, num_fewshot: int) -> HubData | None:
    """Return the data on the hub that a task reads, None for local data; ``ValueError`` for a group of tasks."""
    if task.is_group:
        raise ValueError(f"paths.hub_mirror: {task.name} is a group of tasks; name its tasks one by one")
    stock = read_task(task.path)
    if "dataset_path" not in stock or stock["dataset_path"] in LOCAL_READERS:
        return None
    splits = {kind: stock[kind] for kind in _SPLITS if stock.get(kind) is not None}
    needed = [splits[kind] for kind in ("test_split", "validation_split") if kind in splits][:1]
    if num_fewshot > 0:
        needed += [splits[kind] for kind in ("fewshot_split", "training_split") if kind in splits][:1]
    return HubData(stock["dataset_path"], stock.get("dataset_name"), splits, tuple(dict.fromkeys(needed)))


def mirrored_task(task: TaskFile, mirror: Path, num_fewshot: int) -> StandIn | None:
    """Return a task that includes ``task`` and reads its data from ``<mirror>/<org>/<dataset>/<config>/<split>.jsonl``.

    None if the task does not come from the hub. A split without a file is switched off, unless it is the one that is
    evaluated or the one that examples are drawn from: then ``ValueError`` says which file is missing.
    """
    data = hub_data(task, num_fewshot)
    if data is None:
        return None
    splits, files = data.splits, {split: data.file(mirror, split) for split in data.splits.values()}
    if missing := [str(files[split]) for split in data.needed if not files[split].is_file()]:
        raise ValueError(
            f"paths.hub_mirror: {task.name} needs {' and '.join(missing)}; the target `fetch` downloads it"
        )
    present = {split: str(path.resolve()) for split, path in files.items() if path.is_file()}
    absent = {kind: None for kind, split in splits.items() if split not in present}
    return {**_include(task, present), "dataset_path": "json", "dataset_name": None, **absent}


def generated_tasks(folder: Path) -> list[tuple[TaskFile, StandIn]]:
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


def _include(task: TaskFile, data_files: dict[str, str]) -> StandIn:
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
