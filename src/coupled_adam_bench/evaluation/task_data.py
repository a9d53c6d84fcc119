"""Finds the data of tasks: on the hub, in its mirror, or beside the generated language."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coupled_adam_bench.data.check import TASKS
from coupled_adam_bench.evaluation.task_digests import StandIn
from coupled_adam_bench.evaluation.task_files import TaskFile, find_tasks, shots_of
from coupled_adam_bench.evaluation.task_yaml import LOCAL_READERS, read_task
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.settings import Study
from embedding_geometry.user_files import check_no_pointer

_SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")


def plan_tasks(study: Study, data_id: str) -> list[tuple[TaskFile, StandIn | None]]:
    """Return the study's tasks, each with the task that stands in for it, None for one that lm-eval
    loads as it is."""
    downstream = study.evaluation.downstream_of_files
    if downstream is None:
        return [*_generated_tasks(paths.data_dir(data_id) / TASKS)]
    tasks = find_tasks(downstream.tasks, study.paths.tasks, downstream.task_versions)
    if study.paths.hub_mirror is None:
        return [(task, None) for task in tasks]
    mirror = Path(study.paths.hub_mirror)
    return [(task, mirrored_task(task, mirror, downstream.num_fewshot)) for task in tasks]


@dataclass(frozen=True)
class HubData:
    """The data on the hub that a task reads."""

    dataset: str
    config_name: str | None
    splits: dict[str, str]
    """By kind of split its name, for those that the task has."""
    needed: tuple[str, ...]
    """The split that is evaluated, and the one from which examples are drawn, if there are
    examples."""

    def file(self, mirror: Path, split: str) -> Path:
        """Return where a split lies in the folder ``paths.hub_mirror``."""
        return mirror / self.dataset / (self.config_name or "default") / f"{split}.jsonl"


def hub_data(task: TaskFile, num_fewshot: int | None) -> HubData | None:
    """Return the data on the hub that a task reads, None for local data; ``ValueError`` for a group
    of tasks."""
    if task.is_group:
        raise ValueError(
            f"paths.hub_mirror: {task.name} is a group of tasks; name its tasks one by one"
        )
    stock = read_task(task.path)
    if "dataset_path" not in stock or stock["dataset_path"] in LOCAL_READERS:
        return None
    splits = {kind: stock[kind] for kind in _SPLITS if stock.get(kind) is not None}
    needed = [splits[kind] for kind in ("test_split", "validation_split") if kind in splits][:1]
    if shots_of(task, num_fewshot):
        needed += [splits[kind] for kind in ("fewshot_split", "training_split") if kind in splits][
            :1
        ]
    return HubData(
        stock["dataset_path"], stock.get("dataset_name"), splits, tuple(dict.fromkeys(needed))
    )


def mirrored_task(task: TaskFile, mirror: Path, num_fewshot: int | None) -> StandIn | None:
    """Return a task that includes ``task`` and reads its data from
    ``<mirror>/<org>/<dataset>/<config>/<split>.jsonl``.

    None if the task does not come from the hub. A split without a file is switched off, unless it
    is the one that is evaluated or the one that examples are drawn from: then ``ValueError`` says
    which file is missing.
    """
    data = hub_data(task, num_fewshot)
    if data is None:
        return None
    files = {split: data.file(mirror, split) for split in data.splits.values()}
    if missing := [str(files[split]) for split in data.needed if not files[split].is_file()]:
        raise ValueError(
            f"paths.hub_mirror: {task.name} needs {' and '.join(missing)}; the target `fetch`"
            " downloads it"
        )
    for path in files.values():
        check_no_pointer(path)
    present = {split: str(path.resolve()) for split, path in files.items() if path.is_file()}
    absent = {kind: None for kind, split in data.splits.items() if split not in present}
    return {**_including(task, present), "dataset_path": "json", "dataset_name": None, **absent}


def _generated_tasks(folder: Path) -> Iterator[tuple[TaskFile, StandIn]]:
    """Yield the tasks of the generated language, each with one that includes it and finds the data
    files beside it."""
    for path in sorted(folder.resolve().glob("*.yaml")):
        values = read_task(path)
        task = TaskFile(values["task"], path)
        names = values["dataset_kwargs"]["data_files"].items()
        yield task, _including(task, {split: str(path.parent / name) for split, name in names})


def _including(task: TaskFile, data_files: dict[str, str]) -> StandIn:
    return {
        "include": str(task.path),
        "task": task.name,
        "dataset_kwargs": {"data_files": data_files},
    }
