"""Checks before the first job what a study's evaluation needs; it imports no numpy, torch or lm-eval."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from coupled_adam_bench.evaluation.pairs import read_pairs, set_files
from coupled_adam_bench.evaluation.settings import own_metrics as check_metrics
from coupled_adam_bench.evaluation.task_contents import task_contents
from coupled_adam_bench.evaluation.task_files import find_tasks, mirrored_task, user_folder
from coupled_adam_bench.study.config import Study


def check_evaluation(study: Study) -> None:
    """Check task names, word-similarity sets and the hub mirror; ``ValueError`` that lists all problems.

    What the data stage generates itself (``synthetic``) is not checked: it does not exist yet.
    """
    problems: list[str] = []
    if study.evaluation.word_similarity != "synthetic":
        problems += _repeated("evaluation.word_similarity", (spec.name for spec in study.evaluation.word_similarity))
        for spec, path in set_files(study, Path()):
            problems += _problem(read_pairs, path, spec)
    problems += _problem(check_metrics, study)
    if study.evaluation.downstream.tasks != "synthetic":
        problems += _repeated("evaluation.downstream.tasks", study.evaluation.downstream.tasks)
        problems += _task_problems(study)
    if problems:
        raise ValueError(f"evaluation: {len(problems)} problem(s)\n" + "\n".join(f"  {line}" for line in problems))


def _task_problems(study: Study) -> list[str]:
    downstream = study.evaluation.downstream
    own = user_folder(study.paths.tasks)
    try:
        tasks = find_tasks(downstream.tasks, own, downstream.task_versions)
    except ValueError as error:
        return [str(error)]
    except OSError as error:
        return [f"paths.tasks: {error.filename} cannot be read: {error.strerror}"]
    if study.paths.hub_mirror is None:
        return [line for task in tasks for line in _problem(task_contents, task, None, own)]
    mirror = Path(study.paths.hub_mirror)
    try:
        return [line for task in tasks for line in _problem(mirrored_task, task, mirror, downstream.num_fewshot)]
    except OSError as error:
        return [f"paths.hub_mirror: {error.filename} cannot be read: {error.strerror}"]


def _problem(check: Callable[..., Any], *args: Any) -> list[str]:
    try:
        check(*args)
    except ValueError as error:
        return [str(error)]
    return []


def _repeated(setting: str, names: Iterable[str]) -> list[str]:
    return [f"{setting}: {name!r} is named {count} times" for name, count in Counter(names).items() if count > 1]
