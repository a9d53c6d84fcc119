"""Lists for each stage everything but the model that can change the numbers of an evaluation, and
checks it.

The name of an evaluation's file holds a hash of these settings, and the workflow needs the name
before there is any data: so this module imports nothing heavy. A file counts by its contents, not
by its path. The sets that the data stage generates (``synthetic``) are identified by the id of the
data. Not seen of a downstream task: data on the Hugging Face hub, and Python code outside of
lm-eval and ``paths.tasks``.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from coupled_adam_bench.data.check import WORD_PAIRS
from coupled_adam_bench.evaluation.task_data import mirrored_task, plan_tasks
from coupled_adam_bench.evaluation.task_digests import task_contents
from coupled_adam_bench.evaluation.task_files import TaskFile, find_tasks, installed, shots_of
from coupled_adam_bench.store.files import cached_by_file, digest
from coupled_adam_bench.study.plan.dotted import code_of
from coupled_adam_bench.study.settings import Downstream, Study, WordSimilaritySet
from coupled_adam_bench.study.settings.base import duplicates
from embedding_geometry.word_lists import Pair, WordList, describe_list, recognised_set
from embedding_geometry.word_lists import read_pairs as read_list

RANDOM_SEED, OTHER_SEED = 0, 1234
"""lm-eval's default seeds: that of Python's generator, and that of all others."""
LIBRARIES = ("lm_eval", "transformers", "tokenizers", "datasets")
"""The libraries that decide which tokens are scored, and how. The version of PyTorch changes only
the rounding."""


def set_files(study: Study, data_folder: Path) -> list[tuple[WordSimilaritySet, Path]]:
    """Return the study's sets and their files; the set of the generated language lies next to the
    token bins."""
    if study.evaluation.word_similarity == "synthetic":
        return [(WordSimilaritySet(name="synthetic", file=WORD_PAIRS), data_folder / WORD_PAIRS)]
    return [
        (spec, Path(study.paths.word_similarity) / spec.file)
        for spec in study.evaluation.word_similarity
    ]


def read_pairs(path: Path, spec: WordSimilaritySet) -> list[Pair]:
    """Read a set; ``ValueError`` with file, line and the settings that lead there for one that
    cannot be read."""
    pairs: list[Pair] = _of_list(read_list, path, spec)
    return pairs


def described_sets(study: Study) -> list[str]:
    """Return what is read of each word-similarity set that the study brings, in words: its first
    pair, and the column of the rating; or what is wrong with it.

    A set of the generated language is left out, and one whose file is not there.
    """
    if study.evaluation.word_similarity == "synthetic":
        return []
    said = []
    for spec, path in set_files(study, Path()):
        if path.is_file():
            said += _problem(read_pairs, path, spec) or [_of_list(describe_list, path, spec)]
    return said


def _of_list(read: Callable[[Path, WordList], Any], path: Path, spec: WordSimilaritySet) -> Any:
    """Return what ``read`` returns for a set, with the settings that lead to it in its errors."""
    try:
        return read(path, _as_read(path, spec))
    except ValueError as error:
        raise ValueError(
            f"{error}; the settings are evaluation.word_similarity (`columns` names the columns,"
            " such as [0, 1, 2]) and paths.word_similarity, and the target `fetch` downloads the"
            " paper's sets"
        ) from None


def _as_read(path: Path, spec: WordSimilaritySet) -> WordList:
    """Return how a set is read: as the study says, and where it says nothing as its file shows."""
    columns, strip_pos = spec.columns, spec.strip_pos
    if columns is None or strip_pos is None:
        found = recognised_set(path, spec.name, columns)
        columns = found.columns if columns is None else columns
        strip_pos = found.strip_pos if strip_pos is None else strip_pos
    return WordList(spec.name, spec.file, columns, strip_pos)


def test_loss(study: Study, data_id: str) -> dict[str, Any]:  # noqa: ARG001 - the same for all stages
    """Return what can change the test loss; its text is part of the data, which the cell's id
    covers."""
    test_loss = study.evaluation.test_loss
    found = test_loss.in_effect() | {
        "split": study.training.held_out(test_loss.split),
        "precision": study.training.precision,
    }
    if study.data.tokenizer == "file":  # bits per byte were once those that the tokens spell
        found["bytes"] = "text"
    return found


def validation_loss(study: Study, data_id: str) -> dict[str, Any]:  # noqa: ARG001 - the same for all stages
    """Return what can change the loss by which a tuning chooses; the text is part of the data."""
    split = study.training.held_out("val")
    return {"split": split, "windows": "all", "precision": study.training.precision}


def embeddings(study: Study, data_id: str) -> dict[str, Any]:
    """Return what can change the metrics of embeddings; ``ValueError`` for a word-similarity set
    that is not there."""
    return {
        "leading_space": study.evaluation.leading_space,
        "isotropy": study.evaluation.isotropy,
        "tokenizer": study.data.tokenizer,
        "word_similarity": _word_similarity(study, data_id),
        "head": measures_head(study),
        "metrics": own_metrics(study),
    }


def measures_head(study: Study) -> bool:
    """Tell whether the output matrix is measured: in all cells of a study that has an untied
    model."""
    return any(model.has_own_head for model in study.models)


def downstream(study: Study, data_id: str) -> dict[str, Any]:
    """Return what can change the scores of downstream tasks; ``ValueError`` for files of tasks that
    are not there."""
    chosen = downstream_of(study)
    found = {
        "task_versions": chosen.task_versions,
        "precision": chosen.precision,
        "tasks": _tasks(study, data_id),
        "num_fewshot": _shots(study, chosen),
        "limit": chosen.limit,
        "max_length": study.training.seq_len,
        "tokenizer": study.data.tokenizer,
        "seeds": [RANDOM_SEED, OTHER_SEED],
        "versions": {library: installed(library) for library in LIBRARIES},
    }
    # Texts like dates were once times, and the first of equal choices had the whole hit. The
    # generated tasks have neither, so their numbers stay.
    if study.evaluation.downstream_of_files is not None:
        found["items"] = "as written, ties shared"
    return found


def _shots(study: Study, chosen: Downstream) -> Any:
    """Return the study's number of examples or, if the study has none, the numbers of the tasks
    that have some, by name; else 0."""
    if chosen.num_fewshot is not None or study.evaluation.downstream_of_files is None:
        return chosen.num_fewshot or 0
    tasks = find_tasks(chosen.tasks, study.paths.tasks, chosen.task_versions)
    shots: dict[str, Any] = {}
    for task in tasks:
        number = "its own" if task.is_group else shots_of(task, None)
        if number != 0:
            shots[task.name] = number
    return shots or 0


def downstream_of(study: Study) -> Downstream:
    """Return ``evaluation.downstream``; ``ValueError`` if the study has no downstream tasks."""
    if study.evaluation.downstream is None:
        raise ValueError(
            f"evaluation.downstream: null in study {study.study!r}; give it, {{}} for its defaults"
        )
    return study.evaluation.downstream


def _word_similarity(study: Study, data_id: str) -> Any:
    if study.evaluation.word_similarity == "synthetic":
        return {"generated": data_id}
    found = []
    for spec, path in set_files(study, Path()):
        as_read: WordList = _of_list(lambda _, known: known, path, spec)
        found.append(
            {
                "name": spec.name,
                "columns": list(as_read.columns),
                "strip_pos": as_read.strip_pos,
                "pairs_sha256": _pairs_sha256(path, spec),
            }
        )
    return found


@cached_by_file
def _pairs_sha256(path: Path, spec: WordSimilaritySet) -> str:
    return digest(read_pairs(path, spec), 64)


def own_metrics(study: Study) -> list[dict[str, Any]]:
    """Return what can change the values of a study's own metrics; ``ValueError`` for a module that
    is not there."""
    found = []
    for index, metric in enumerate(study.evaluation.metrics):
        try:
            found.append({"name": metric.name, "path": metric.path, "code": code_of(metric.path)})
        except ValueError as error:
            raise ValueError(f"evaluation.metrics.{index}.{error}") from None
    return found


def _tasks(study: Study, data_id: str) -> Any:
    if study.evaluation.downstream_of_files is None:
        return {"generated": data_id}
    # A list: the order of tasks is that of the results.
    return [
        task_contents(task, stand_in, study.paths.tasks)
        for task, stand_in in plan_tasks(study, data_id)
    ]


class EvaluationError(ValueError):
    """Says all that the evaluation of a study lacks; ``in_short`` is one line of it."""

    def __init__(self, problems: Sequence[str]) -> None:
        advice = (
            "to measure without word lists, set word_similarity: []; without tasks, downstream:"
            " {tasks: []}"
        )
        lines = ["evaluation: something is missing or wrong", *problems, advice]
        super().__init__("\n  ".join(lines))
        several = f"{len(problems)} things are missing or wrong, such as " if problems[1:] else ""
        self.in_short = f"evaluation: {several}{problems[0]}"


def check_evaluation(study: Study) -> None:
    """Check task names, word-similarity sets and the hub mirror; ``ValueError`` that lists all
    problems.

    What the data stage generates itself (``synthetic``) is not checked: it does not exist yet.
    """
    evaluation, problems = study.evaluation, _problem(own_metrics, study)
    if evaluation.word_similarity != "synthetic":
        problems += _repeated("word_similarity", [spec.name for spec in evaluation.word_similarity])
        for spec, path in set_files(study, Path()):
            problems += _problem(read_pairs, path, spec)
    if (downstream := evaluation.downstream_of_files) is not None:
        problems += _repeated("downstream.tasks", downstream.tasks)
        try:
            problems += _task_problems(study, downstream)
        except OSError as error:
            problems.append(
                f"paths.tasks, paths.hub_mirror: {error.filename} cannot be read: {error.strerror}"
            )
    if problems:
        raise EvaluationError(problems)


def _task_problems(study: Study, downstream: Downstream) -> list[str]:
    own, mirror = study.paths.tasks, study.paths.hub_mirror
    try:
        tasks = find_tasks(downstream.tasks, own, downstream.task_versions)
    except ValueError as error:
        return [str(error)]
    return [
        line
        for task in tasks
        for line in _problem(_check_task, task, own, mirror, downstream.num_fewshot)
    ]


def _check_task(
    task: TaskFile, own: str | None, mirror: str | None, num_fewshot: int | None
) -> None:
    shots_of(task, num_fewshot)
    if mirror is None:
        task_contents(task, None, own)
    else:
        mirrored_task(task, Path(mirror), num_fewshot)


def _problem(check: Callable[..., Any], *args: Any) -> list[str]:
    try:
        check(*args)
    except ValueError as error:
        return [str(error)]
    return []


def _repeated(setting: str, names: Iterable[str]) -> list[str]:
    return [f"evaluation.{setting}: {name!r} is named more than once" for name in duplicates(names)]
