"""Lists for each stage everything but the model that can change the numbers of an evaluation, and checks it.

The name of an evaluation's file holds a hash of these settings, and the workflow needs the name before there is any
data: so this module imports nothing heavy. A file counts by its contents, not by its path. The sets that the data stage
generates (``synthetic``) are identified by the id of the data. Not seen of a downstream task: data on the Hugging Face
hub, and Python code outside of lm-eval and ``paths.tasks``.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from glob import glob
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from coupled_adam_bench.evaluation.pairs import read_pairs, set_files
from coupled_adam_bench.evaluation.task_files import (
    LOCAL_READERS,
    StandIn,
    TaskFile,
    find_tasks,
    included_files,
    mirrored_task,
    plan_tasks,
    read_task,
    user_folder,
)
from coupled_adam_bench.store.files import cached_by_file, digest, sha256_once
from coupled_adam_bench.study.config import Downstream, OwnMetric, Study, Theory, WordSimilaritySet
from coupled_adam_bench.study.dotted import code_of

RANDOM_SEED, OTHER_SEED = 0, 1234
"""lm-eval's default seeds: that of Python's generator, and that of all others."""
LIBRARIES = ("lm_eval", "transformers", "tokenizers", "datasets")
"""The libraries that decide which tokens are scored, and how. The version of PyTorch changes only the rounding."""
_FUNCTION = re.compile(r"!function\s+([\w.]+)\.\w+")

Digest = tuple[str, str]
"""Name of a file, without its folder, and the SHA-256 of its contents."""


def test_loss(study: Study, data_id: str) -> dict[str, Any]:  # noqa: ARG001 - the same for all stages
    """Return what can change the test loss; its text is part of the data, which the cell's id covers."""
    return study.evaluation.test_loss.in_effect() | {"precision": study.training.precision}


def validation_loss(study: Study, data_id: str) -> dict[str, Any]:  # noqa: ARG001 - the same for all stages
    """Return what can change the loss by which a tuning chooses; the text is part of the data."""
    return {"split": "val", "windows": "all", "precision": study.training.precision}


def embeddings(study: Study, data_id: str) -> dict[str, Any]:
    """Return what can change the metrics of embeddings; ``ValueError`` for a word-similarity set that is not there."""
    return {
        "leading_space": study.evaluation.leading_space,
        "isotropy": study.evaluation.isotropy,
        "tokenizer": study.data.tokenizer,
        "word_similarity": _word_similarity(study, data_id),
        "head": measures_head(study),
        "metrics": own_metrics(study),
    }


def measures_head(study: Study) -> bool:
    """Tell whether the output matrix is measured: in all cells of a study that has an untied model."""
    return any(model.has_own_head for model in study.models)


def downstream(study: Study, data_id: str) -> dict[str, Any]:
    """Return what can change the scores of downstream tasks; ``ValueError`` for files of tasks that are not there."""
    chosen = downstream_of(study)
    return {
        "task_versions": chosen.task_versions,
        "precision": chosen.precision,
        "tasks": _tasks(study, data_id),
        "num_fewshot": chosen.num_fewshot,
        "limit": chosen.limit,
        "max_length": study.training.seq_len,
        "tokenizer": study.data.tokenizer,
        "seeds": [RANDOM_SEED, OTHER_SEED],
        "versions": {library: _version(library) for library in LIBRARIES},
    }


def downstream_of(study: Study) -> Downstream:
    """Return ``evaluation.downstream``; ``ValueError`` if the study has no downstream tasks."""
    if study.evaluation.downstream is None:
        raise ValueError(f"evaluation.downstream: null in study {study.study!r}; give it, {{}} for its defaults")
    return study.evaluation.downstream


def theory(study: Study, data_id: str) -> dict[str, Any]:  # noqa: ARG001 - the same for all stages
    """Return what can change the measurements of the theory; ``ValueError`` if the study does not ask for them."""
    return theory_of(study).in_effect()


def theory_of(study: Study) -> Theory:
    """Return ``evaluation.theory``; ``ValueError`` if the study does not ask for it."""
    if study.evaluation.theory is None:
        raise ValueError(f"evaluation.theory: not in study {study.study!r}; give it, {{}} for its defaults")
    return study.evaluation.theory


def _word_similarity(study: Study, data_id: str) -> Any:
    if study.evaluation.word_similarity == "synthetic":
        return {"generated": data_id}
    return [
        {
            "name": spec.name,
            "columns": list(spec.columns),
            "strip_pos": spec.strip_pos,
            "pairs_sha256": _pairs_sha256(path, spec),
        }
        for spec, path in set_files(study, Path())
    ]


def own_metrics(study: Study) -> list[dict[str, Any]]:
    """Return what can change the values of a study's own metrics; ``ValueError`` for a module that is not there."""
    return [_own_metric(index, metric) for index, metric in enumerate(study.evaluation.metrics)]


def _own_metric(index: int, metric: OwnMetric) -> dict[str, Any]:
    try:
        return {"name": metric.name, "path": metric.path, "code": code_of(metric.path)}
    except ValueError as error:
        raise ValueError(f"evaluation.metrics.{index}.{error}") from None


@cached_by_file
def _pairs_sha256(path: Path, spec: WordSimilaritySet) -> str:
    return digest(read_pairs(path, spec), 64)


def _tasks(study: Study, data_id: str) -> Any:
    if study.evaluation.downstream_of_files is None:
        return {"generated": data_id}
    own_folder = user_folder(study.paths.tasks)
    # A list: the order of tasks is that of the results.
    return [task_contents(task, stand_in, own_folder) for task, stand_in in plan_tasks(study, data_id)]


@cache
def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        raise ValueError(f"{library} is not installed: pip install 'coupled-adam-bench[pipeline]'") from None


def task_contents(task: TaskFile, stand_in: StandIn | None, own_folder: Path | None) -> dict[str, Any]:
    """Return the hashes of a task's YAML files, Python code and local data, wherever they lie.

    One of the user's own tasks counts with all Python files in its folder, and a group of tasks with all of the user's
    tasks. ``ValueError`` for a file that the task names and that is not there.
    """
    tasks = [task.path]
    if task.is_group and own_folder is not None:
        tasks += [path for path in sorted(own_folder.glob("**/*.yaml")) if path != task.path]
    settings = [stand_in] if stand_in is not None else [read_task(yaml) for yaml in tasks]
    code = [file for yaml in tasks for file in _files_of_task(yaml)]
    if own_folder is not None:
        code += [file for yaml in tasks if own_folder in yaml.parents for file in sorted(yaml.parent.glob("**/*.py"))]
    return {
        "name": task.name,
        "files": [_digest(path) for path in dict.fromkeys(code)],
        "data": [_data(task, values) for values in settings],
    }


def _digest(path: Path) -> Digest:
    return path.name, sha256_once(path)


def _files_of_task(path: Path) -> Iterator[Path]:
    """Yield a YAML file, those that it includes, and the Python files beside them that they name a function of."""
    yield path
    for other in included_files(path):
        yield from _files_of_task(other)
    for module in _FUNCTION.findall(path.read_text(encoding="utf-8")):
        if (file := path.parent / f"{module.replace('.', '/')}.py").is_file():
            yield file


def _data(task: TaskFile, settings: dict[str, Any]) -> dict[str, list[Digest]]:
    """Return the digests of the local data files of a task by split; empty for data on the hub."""
    options, source = settings.get("dataset_kwargs") or {}, settings.get("dataset_path")
    is_reader = source in LOCAL_READERS
    if not isinstance(source, str) or not (is_reader or Path(source).exists()):
        return {}
    folder = Path(options.get("data_dir") or "") if is_reader else Path(source)
    if "data_files" not in options:  # a script, or a folder that is read whole
        files = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
        return {"": [_digest(path) for path in files]}
    named = options["data_files"]
    splits = named if isinstance(named, dict) else {"": named}
    return {
        str(split): [
            one for name in ([names] if isinstance(names, str) else names) for one in _digests(task, folder, name)
        ]
        for split, names in splits.items()
    }


def _digests(task: TaskFile, folder: Path, name: str) -> list[Digest]:
    """Return the digests of the files that one name stands for: a path, a glob, or a URL, which is not fetched."""
    if "://" in name:
        return [(name, "")]
    paths = [Path(path) for path in sorted(glob(str(folder / name), recursive=True))]  # noqa: PTH207
    if not paths:
        raise ValueError(
            f"evaluation.downstream.tasks: {task.name} needs {folder / name}, which does not exist (data_files in "
            f"{task.path}, from the folder in which the study is run)"
        )
    return [_digest(path) for path in paths]


def check_evaluation(study: Study) -> None:
    """Check task names, word-similarity sets and the hub mirror; ``ValueError`` that lists all problems.

    What the data stage generates itself (``synthetic``) is not checked: it does not exist yet.
    """
    problems: list[str] = []
    if study.evaluation.word_similarity != "synthetic":
        problems += _repeated("evaluation.word_similarity", (spec.name for spec in study.evaluation.word_similarity))
        for spec, path in set_files(study, Path()):
            problems += _problem(read_pairs, path, spec)
    problems += _problem(own_metrics, study)
    if (downstream := study.evaluation.downstream_of_files) is not None:
        problems += _repeated("evaluation.downstream.tasks", downstream.tasks)
        problems += _task_problems(study, downstream)
    if problems:
        raise ValueError(f"evaluation: {len(problems)} problem(s)\n" + "\n".join(f"  {line}" for line in problems))


def _task_problems(study: Study, downstream: Downstream) -> list[str]:
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
