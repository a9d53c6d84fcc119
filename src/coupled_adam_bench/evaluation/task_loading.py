"""Tasks of the lm-evaluation-harness, loaded with their data."""

import logging
import os
import random
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from coupled_adam_bench.data.check import TASKS, verified_tree
from coupled_adam_bench.evaluation import settings
from coupled_adam_bench.evaluation.as_written import files_as_written
from coupled_adam_bench.evaluation.settings import OTHER_SEED, RANDOM_SEED
from coupled_adam_bench.evaluation.task_data import plan_tasks
from coupled_adam_bench.evaluation.task_digests import StandIn, reads_files, task_contents
from coupled_adam_bench.evaluation.task_files import TaskFile, is_found_without_index
from coupled_adam_bench.evaluation.task_yaml import LOCAL_READERS, read_task
from coupled_adam_bench.evaluation.ties import share_hits
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_text
from coupled_adam_bench.study.plan.dotted import compiled_anew
from coupled_adam_bench.study.settings import Study
from embedding_geometry.transport import CacheError, check_cache

Loaded = dict[str, dict[str, Any]]
"""What lm-eval loaded for each task of the study, by its name: tasks and groups, several tasks for
a group."""


@contextmanager
def load_tasks(study: Study, data_id: str) -> Iterator[Loaded]:
    """Import lm-eval and yield the study's tasks, loaded with their data; ``ValueError`` if one
    cannot be, or lm-eval does not understand the answers of its items."""
    _quiet()
    if study.evaluation.downstream_of_files is None:
        verified_tree(paths.data_dir(data_id), TASKS)
    tasks = plan_tasks(study, data_id)
    chosen = settings.downstream_of(study)
    with tempfile.TemporaryDirectory(prefix="coupled-adam-bench-") as folder:
        loaded = _load_tasks(tasks, study.paths.tasks, Path(folder), chosen.num_fewshot)
        from coupled_adam_bench.evaluation.items import check_items

        for members in loaded.values():
            for member in members["tasks"].values():
                check_items(member, chosen.limit)
        yield loaded


def in_words(error: Exception) -> str:
    """Return the type of an error with its message or, if it has none, with the line that raised
    it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"in {Path(frame.filename).name}, line {frame.lineno}: {frame.line}"
    return f"{type(error).__name__}: {str(error) or place}"


def _load_tasks(
    tasks: list[tuple[TaskFile, StandIn | None]],
    own_tasks: str | None,
    folder: Path,
    num_fewshot: int | None,
) -> Loaded:
    """Return lm-eval's tasks and groups, loaded with their data, which it may cache in
    ``folder``."""
    from lm_eval.tasks import TaskManager

    # A task is loaded by its file. A group names its members, and only for those that are not the
    # user's own does lm-eval read its 14,000 files.
    own = None if own_tasks is None else str(Path(own_tasks).resolve())
    is_indexed = not all(is_found_without_index(task, own_tasks) for task, _ in tasks)
    manager = TaskManager(include_path=own, include_defaults=is_indexed)
    loaded: Loaded = {}
    for task, stand_in in tasks:
        source = task.name if task.is_group else str(task.path)
        if stand_in is not None:
            source = str(folder / f"{task.name}.yaml")
            write_text(Path(source), yaml.safe_dump(stand_in))
        try:
            with (
                compiled_anew(),
                files_as_written(),
                _cached_in(folder / "cache" if _reads_files(task, stand_in, own_tasks) else None),
            ):
                loaded[task.name] = manager.load([source])
        except Exception as error:
            _check_half_loaded(error)
            raise ValueError(
                f"evaluation.downstream.tasks: {task.name!r} cannot be loaded: {in_words(error)}"
                + _advice(task, stand_in)
            ) from error
        for member in loaded[task.name]["tasks"].values():
            own = member.get_config("num_fewshot")
            if own != 0:  # a task that says 0 has its examples in the prompt, for lm-eval
                member.set_config("num_fewshot", (own or 0) if num_fewshot is None else num_fewshot)
            _build_once(member)
            share_hits(member)
    return loaded


def _check_half_loaded(error: Exception) -> None:
    """Look at the items of the task that lm-eval was loading when the error was raised.

    It tries the first item while it loads, so what is wrong with its items may end the loading.
    """
    from lm_eval.api.task import ConfigurableTask

    from coupled_adam_bench.evaluation.items import check_items

    for frame, _ in traceback.walk_tb(error.__traceback__):
        task = frame.f_locals.get("self")
        if isinstance(task, ConfigurableTask) and hasattr(task, "multiple_input"):
            check_items(task, None)
            return


def _reads_files(task: TaskFile, stand_in: StandIn | None, own_tasks: str | None) -> bool:
    return reads_files(task_contents(task, stand_in, own_tasks))


@contextmanager
def _cached_in(folder: Path | None) -> Iterator[None]:
    """Have the library `datasets` keep what it makes of files in ``folder``; None leaves it its
    usual place.

    There it finds again what it made of a file by the file's path and time, though the contents may
    be others, and what it unpacked only by the path.
    """
    from datasets import config

    usual = config.HF_DATASETS_CACHE, config.DOWNLOADED_DATASETS_PATH
    if folder is not None:
        config.HF_DATASETS_CACHE, config.DOWNLOADED_DATASETS_PATH = folder, folder / "downloads"
    try:
        yield
    finally:
        config.HF_DATASETS_CACHE, config.DOWNLOADED_DATASETS_PATH = usual


def _advice(task: TaskFile, stand_in: StandIn | None) -> str:
    """Return what may be the matter with a task that cannot be loaded."""
    if stand_in is not None or (
        not task.is_group and read_task(task.path).get("dataset_path") in LOCAL_READERS
    ):
        return ""
    try:
        check_cache()
    except CacheError as error:
        return f"\n{error}"
    return (
        "\nIf the Hugging Face hub cannot be reached from here, set paths.hub_mirror to a folder"
        " and fill it on a machine that reaches it (target `fetch`), or yourself:"
        " <org>/<dataset>/<config>/<split>.jsonl"
    )


def _build_once(task: Any) -> None:
    """Have lm-eval build a task's requests for the first cell only, and the others given the same
    ones."""
    build, is_built = task.build_all_requests, False

    def build_or_reset(**options: Any) -> None:
        nonlocal is_built
        if not is_built:
            build(**options)
            is_built = True
        for request in task.instances:
            request.resps, request.filtered_resps = [], {}
        # for what a task draws after its requests, also where it has drawn nothing for them
        seed_generators()

    task.build_all_requests = build_or_reset


def seed_generators() -> None:
    """Put all generators into one state."""
    import torch

    random.seed(RANDOM_SEED)
    np.random.seed(OTHER_SEED)  # noqa: NPY002 - tasks may draw from the global generator
    torch.manual_seed(OTHER_SEED)


def _quiet() -> None:
    """Keep lm-eval and its libraries to errors and rare progress lines; must run before they are
    imported."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["TQDM_MININTERVAL"] = "60"
    os.environ["DISABLE_MULTIPROC"] = "1"  # else lm-eval forks for its bootstrap
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    import datasets

    datasets.disable_progress_bars()
