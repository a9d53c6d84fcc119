"""The stage ``lm_eval``: downstream tasks by the lm-evaluation-harness, whose tasks are loaded once for all cells."""

import logging
import math
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from coupled_adam_bench import paths
from coupled_adam_bench.cells import Cell
from coupled_adam_bench.device import pick_device
from coupled_adam_bench.evaluation.record import Evaluation, Evaluator, Row, row
from coupled_adam_bench.evaluation.task_files import TaskFile, find_tasks, generated_tasks, mirrored_task, user_folder
from coupled_adam_bench.files import sha256_file, write_text
from coupled_adam_bench.plan import Part

RANDOM_SEED, OTHER_SEED = 0, 1234
"""lm-eval's own defaults: Python's generator, and all others."""
BOOTSTRAP_ITERS = 2
"""Any number above 0 makes lm-eval report the standard error of a mean, in closed form; drawn ones are not used."""
WITH_STDERR = ("acc", "acc_norm")
"""Means over items."""


def plan_tasks(part: Part) -> list[tuple[TaskFile, dict[str, Any] | None]]:
    """Return the study's tasks, each with the task that stands in for it, None for one that lm-eval loads as it is."""
    study = part.study
    downstream = study.evaluation.downstream
    if downstream.tasks == "synthetic":
        return [*generated_tasks(paths.data_dir(part.data_id) / "tasks")]
    tasks = find_tasks(downstream.tasks, user_folder(study.paths.tasks))
    if study.paths.hub_mirror is None:
        return [(task, None) for task in tasks]
    mirror = Path(study.paths.hub_mirror)
    return [(task, mirrored_task(task, mirror, downstream.num_fewshot)) for task in tasks]


def settings(part: Part) -> dict[str, Any]:
    """Return what can change the numbers: tasks and the contents of their files, shots, limit and lm-eval itself."""
    tasks = {}
    for task, stand_in in plan_tasks(part):
        data_files = stand_in["dataset_kwargs"]["data_files"] if stand_in else {}
        hashes = {split: sha256_file(Path(path)) for split, path in data_files.items()}
        tasks[task.name] = {"yaml": sha256_file(task.path), "data": hashes}
    downstream = part.study.evaluation.downstream
    return {
        "tasks": tasks,
        "num_fewshot": downstream.num_fewshot,
        "limit": downstream.limit,
        "max_length": part.study.training.seq_len,
        "precision": part.study.training.precision,
        "lm_eval": version("lm_eval"),
    }


@contextmanager
def open_evaluator(part: Part, device: str) -> Iterator[Evaluator]:
    """Import lm-eval, load the tasks with their data and yield the evaluator.

    ``ValueError`` for a task that cannot be loaded, such as one whose dataset is on an unreachable hub.
    """
    _quiet()
    device = pick_device(device)
    study = part.study
    downstream = study.evaluation.downstream
    tasks = plan_tasks(part)
    with tempfile.TemporaryDirectory(prefix="coupled-adam-bench-") as folder:
        loaded = _load_tasks(tasks, user_folder(study.paths.tasks), Path(folder), downstream.num_fewshot)

        def evaluate(cell: Cell, model: Path) -> Evaluation:
            from lm_eval.evaluator import evaluate as run_tasks
            from lm_eval.models.huggingface import HFLM

            _seed(loaded)
            bf16 = cell.training.precision == "bf16" and device.startswith("cuda")
            lm = HFLM(
                pretrained=str(model),
                backend="causal",
                dtype="float32",
                mixed_precision_dtype="bfloat16" if bf16 else None,
                device=device,
                batch_size=study.execution.evaluation_batch_sequences,
                max_length=cell.training.seq_len,
            )
            with redirect_stdout(sys.stderr):
                report = run_tasks(
                    lm, loaded, limit=downstream.limit, bootstrap_iters=BOOTSTRAP_ITERS, log_samples=False
                )
            rows, reasons = task_rows([task.name for task, _ in tasks], report["results"])
            items = {
                name: {
                    "version": report["versions"][name],
                    "num_fewshot": report["n-shot"][name],
                    **report["n-samples"][name],
                }
                for name in loaded["tasks"]
            }
            return Evaluation(rows, reasons, {"tasks": items, "lm_eval": version("lm_eval"), "device": device})

        yield evaluate


def task_rows(names: list[str], results: dict[str, dict[str, Any]]) -> tuple[list[Row], list[str]]:
    """Return the rows of lm-eval's ``results`` with the average accuracy, and the reasons for every NaN among them.

    The average is unweighted, its standard error sqrt(sum stderr^2) / n [C]. A task without ``acc`` makes it NaN.
    """
    rows: list[Row] = []
    reasons = []
    accuracies, errors = [], []
    for name in names:
        values = _metrics(results[name])
        if "acc" not in values:
            reasons.append(f"{name}: lm-eval reports no acc, only {', '.join(sorted(values)) or 'nothing'}")
            values |= {"acc": math.nan, "acc_stderr": math.nan}
        rows += [row(name, metric, value) for metric, value in values.items()]
        accuracies.append(values["acc"])
        errors.append(values["acc_stderr"])
    rows.append(row("average", "acc", math.fsum(accuracies) / len(names)))
    rows.append(row("average", "acc_stderr", math.hypot(*errors) / len(names)))
    return rows, reasons


def _metrics(result: dict[str, Any]) -> dict[str, float]:
    """Return metric -> value of one task; lm-eval's keys are ``metric,filter``, and ``none`` is the usual filter."""
    values = {}
    for key, value in result.items():
        metric, comma, name = key.partition(",")
        kept = comma and (not metric.endswith("_stderr") or metric.removesuffix("_stderr") in WITH_STDERR)
        if kept:
            number = float(value) if isinstance(value, int | float | np.number) else math.nan  # "N/A": one item
            values[metric if name == "none" else f"{metric}@{name}"] = number
    return values


def _load_tasks(
    tasks: list[tuple[TaskFile, dict[str, Any] | None]], own_tasks: Path | None, folder: Path, num_fewshot: int
) -> dict[str, Any]:
    """Return lm-eval's tasks and groups, loaded with their data, which it may cache in ``folder``."""
    from lm_eval.tasks import TaskManager

    groups = any(task.is_group for task, _ in tasks)
    # A group names its members, so it needs the index of all tasks, which takes seconds; a task is loaded by its file.
    manager = TaskManager(include_path=str(own_tasks) if own_tasks else None, include_defaults=groups)
    loaded: dict[str, Any] = {"tasks": {}, "groups": {}}
    for task, stand_in in tasks:
        source = task.name if task.is_group else str(task.path)
        if stand_in is not None:
            source = str(folder / f"{task.name}.yaml")
            data = stand_in["dataset_kwargs"] | {"cache_dir": str(folder / "cache")}
            write_text(Path(source), yaml.safe_dump(stand_in | {"dataset_kwargs": data}))
        try:
            part = manager.load([source])
        except Exception as error:
            raise ValueError(
                f"downstream task {task.name!r} cannot be loaded: {type(error).__name__}: {error}\n"
                "If the Hugging Face hub cannot be reached from here, set paths.hub_mirror to a folder "
                "<org>/<dataset>/<config>/<split>.jsonl"
            ) from error
        for kind in loaded:
            loaded[kind] |= part[kind]
    for task in loaded["tasks"].values():
        if task.get_config("num_fewshot") != 0:  # a task that says 0 has its examples in the prompt, as lm-eval holds
            task.set_config("num_fewshot", num_fewshot)
    return loaded


def _seed(loaded: dict[str, Any]) -> None:
    """Put all generators into one state before each cell, as lm-eval's ``simple_evaluate`` does."""
    import torch

    random.seed(RANDOM_SEED)
    np.random.seed(OTHER_SEED)  # noqa: NPY002 - tasks may draw from the global generator
    torch.manual_seed(OTHER_SEED)
    for task in loaded["tasks"].values():
        task.set_fewshot_seed(OTHER_SEED)


def _quiet() -> None:
    """Keep lm-eval and its libraries to errors and rare progress lines; must run before they are imported."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TQDM_MININTERVAL", "60")
    os.environ.setdefault("DISABLE_MULTIPROC", "1")  # else lm-eval forks for its bootstrap
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
