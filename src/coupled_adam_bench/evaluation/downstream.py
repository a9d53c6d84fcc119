"""The stage ``downstream``: tasks of the lm-evaluation-harness, loaded once for all cells."""

import logging
import math
import os
import random
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from coupled_adam_bench.data.check import TASKS, TOKENIZER, verified_tree
from coupled_adam_bench.evaluation import settings
from coupled_adam_bench.evaluation.as_written import files_as_written
from coupled_adam_bench.evaluation.settings import OTHER_SEED, RANDOM_SEED
from coupled_adam_bench.evaluation.task_data import plan_tasks
from coupled_adam_bench.evaluation.task_digests import StandIn, reads_files, task_contents
from coupled_adam_bench.evaluation.task_files import TaskFile, is_found_without_index
from coupled_adam_bench.evaluation.task_yaml import LOCAL_READERS, read_task
from coupled_adam_bench.evaluation.ties import describe_ties, share_hits, tied_items
from coupled_adam_bench.machine.device import pick_device
from coupled_adam_bench.machine.process import rarely_collected
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.records.kept import (
    DOCUMENTS,
    Document,
    column_of,
    documents_of,
    pack_documents,
)
from coupled_adam_bench.records.stored import Evaluation, Evaluator, ResultRow, row
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import digest, write_text
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.plan.dotted import compiled_anew
from coupled_adam_bench.study.settings import Study

BOOTSTRAP_ITERS = 2
"""With any number above 0, lm-eval reports the standard error of a mean in closed form; bootstraps
are not used."""
WITH_STDERR = ("acc", "acc_norm")
"""The metrics that are means over items, between 0 and 1, and have a standard error."""

Loaded = dict[str, dict[str, Any]]
"""What lm-eval loaded for each task of the study, by its name: tasks and groups, several tasks for
a group."""


@contextmanager
def open_evaluator(study: Study, data_id: str, device: str) -> Iterator[Evaluator]:
    """Import lm-eval, load the tasks with their data and yield the evaluator.

    ``ValueError`` for a task that cannot be loaded, such as one whose dataset is on an unreachable
    hub.
    """
    device = pick_device(device)
    with load_tasks(study, data_id) as loaded:
        with rarely_collected():
            from coupled_adam_bench.evaluation.harness_model import HarnessModel, KnownTokens
        tokens: KnownTokens = {}

        def evaluate(cell: Cell, model: Path) -> Evaluation:
            lm = HarnessModel(model, study, device, tokens)
            scored = run_tasks(
                loaded, lm, settings.downstream_of(study).limit, f" of cell {cell.id}"
            )
            rows, reasons = task_rows(list(loaded), scored.results, scored.gaps)
            detail = {"tasks": scored.items, "lm_eval": version("lm_eval"), "device": device}
            return Evaluation(rows, reasons, detail, {DOCUMENTS: pack_documents(scored.documents)})

        yield evaluate


def try_tasks(plan: Plan) -> dict[str, dict[str, int]]:
    """Load and tokenize the tasks of all studies of a plan, whose data must be prepared, before
    anything is trained.

    Returns by study and task the number of items, and prints which have choices of the same tokens.
    Nothing is scored. ``ValueError`` for a task that cannot be loaded, has no items or no ``acc``,
    or has an item that cannot be scored, or whose answer lm-eval does not understand.
    """
    tried: dict[str, dict[str, int]] = {}
    found = {}
    for study in plan.studies.values():
        if study.evaluation.downstream is None:
            continue
        data_id = plan.data_id(study)
        key = digest(settings.downstream(study, data_id)) + data_id
        if key not in tried:
            tried[key] = _try_study(study, data_id)
        found[study.name] = tried[key]
    return found


def _try_study(study: Study, data_id: str) -> dict[str, int]:
    with load_tasks(study, data_id) as loaded:
        from coupled_adam_bench.evaluation.harness_model import ADVICE, HarnessModel
        from coupled_adam_bench.evaluation.items import check_acc

        lm = HarnessModel(paths.data_dir(data_id) / TOKENIZER, study, rehearsal=True)
        scored = run_tasks(loaded, lm, settings.downstream_of(study).limit)
    for said in scored.ties:
        say(f"try-tasks: {said}")
    for name, tasks in loaded.items():
        if "acc,none" in scored.results[name]:
            check_acc(name, tasks["tasks"], scored.documents)
    rows, reasons = task_rows(list(loaded), scored.results, scored.gaps)
    if any(row["metric"] == "acc" and math.isnan(row["value"]) for row in rows):
        raise ValueError(
            f"evaluation.downstream.tasks: {'; '.join(reasons)}; Acc is the mean of acc: {ADVICE}"
        )
    return {name: counted["effective"] for name, counted in scored.items.items()}


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


@dataclass
class Scored:
    """What lm-eval found for a model."""

    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The results of each task of the study by name."""
    gaps: dict[str, str] = field(default_factory=dict)
    """The tasks of the study without results, and why."""
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Version, shots and number of items of each task, members of groups included."""
    documents: list[Document] = field(default_factory=list)
    """The documents of all tasks, members of groups included."""
    ties: list[str] = field(default_factory=list)
    """A sentence for each task with choices of the same tokens."""


def run_tasks(loaded: Loaded, lm: Any, limit: int | None, where: str = "") -> Scored:
    """Score the tasks one by one. A task in which a log-likelihood is not finite is a gap.

    ``ValueError`` that names the task, and ``where``, for whatever lm-eval cannot do; its traceback
    goes to stderr.
    """
    from lm_eval.evaluator import evaluate

    from coupled_adam_bench.evaluation.harness_model import NotFiniteError, RequestError

    scored = Scored()
    for name, tasks in loaded.items():
        # Few-shot examples and resampling depend on nothing but the task.
        _seed(tasks)
        try:
            with redirect_stdout(sys.stderr):
                report = evaluate(
                    lm, tasks, limit=limit, bootstrap_iters=BOOTSTRAP_ITERS, log_samples=True
                )
        except RequestError:
            raise
        except NotFiniteError as error:
            scored.gaps[name] = str(error)
            continue
        except Exception as error:
            traceback.print_exception(error)
            raise ValueError(
                f"downstream task {name!r}{where} cannot be scored: {_in_words(error)}"
            ) from error
        scored.results[name] = report["results"][name]
        for member in tasks["tasks"]:
            scored.documents += documents_of(member, report["samples"][member])
            scored.items[member] = {
                "version": report["versions"][member],
                "num_fewshot": report["n-shot"][member],
                **report["n-samples"][member],
            }
            tied = tied_items(report["samples"][member])
            if tied:
                scored.items[member]["same_tokens"] = len(tied)
                n_items = scored.items[member]["effective"]
                scored.ties.append(f"downstream task {member!r}: {describe_ties(tied, n_items)}")
    return scored


def _in_words(error: Exception) -> str:
    """Return the type of an error with its message or, if it has none, with the line that raised
    it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"in {Path(frame.filename).name}, line {frame.lineno}: {frame.line}"
    return f"{type(error).__name__}: {str(error) or place}"


def task_rows(
    names: list[str], results: dict[str, dict[str, Any]], gaps: Mapping[str, str]
) -> tuple[list[ResultRow], list[str]]:
    """Return the rows of lm-eval's ``results`` with the average accuracy, and the reasons for every
    NaN among them.

    The average is unweighted, its standard error sqrt(sum stderr^2) / n [C]. A task without ``acc``
    makes it NaN, as do the tasks among the ``gaps``, which are there with their reasons instead of
    results. ``ValueError`` for a number that is not finite, and for an accuracy outside of 0 to 1.
    """
    rows: list[ResultRow] = []
    reasons: list[str] = []
    accuracies, errors = [], []
    for name in names:
        values, undefined = (
            ({}, [f"{name}: {gaps[name]}"]) if name in gaps else _metrics(name, results[name])
        )
        if "acc" not in values:
            if name not in gaps:
                undefined.append(_without_acc(name, values))
            values |= {"acc": math.nan, "acc_stderr": math.nan}
        rows += [row(name, metric, value) for metric, value in values.items()]
        reasons += undefined
        accuracies.append(values["acc"])
        errors.append(values["acc_stderr"])
    rows.append(row("average", "acc", math.fsum(accuracies) / len(names)))
    rows.append(row("average", "acc_stderr", math.hypot(*errors) / len(names)))
    return rows, reasons


def _without_acc(name: str, values: Mapping[str, float]) -> str:
    """Return why lm-eval reports no accuracy of a task or a group."""
    if values:
        return f"{name}: lm-eval reports no acc, only {', '.join(sorted(values))}"
    return (
        f"{name}: a group for which lm-eval reports nothing, since it does not aggregate its tasks;"
        " write `aggregate_metric_list: [{metric: acc}]` into its file, or name its tasks"
    )


def _metrics(name: str, result: dict[str, Any]) -> tuple[dict[str, float], list[str]]:
    """Return metric -> value of one task, and the reason for each NaN.

    lm-eval's keys are ``metric,filter``, and ``none`` is the usual filter. A value that it cannot
    compute is text.
    """
    values, undefined = {}, []
    for key, value in result.items():
        metric, comma, filtered = key.partition(",")
        kind = metric.removesuffix("_stderr")
        if not comma or (kind != metric and kind not in WITH_STDERR):
            continue
        # lm-eval writes "N/A" where it has no number, as for the error of a single item.
        column = column_of(metric, filtered)
        if not isinstance(value, int | float | np.number):
            values[column] = math.nan
            undefined.append(
                f"{name}: lm-eval reports {column} as {value!r}"
                + (", as of one item" * (kind != metric))
            )
            continue
        values[column] = float(value)
        if not math.isfinite(value) or (kind in WITH_STDERR and not 0 <= value <= 1):
            raise ValueError(
                f"downstream task {name!r}: lm-eval reports {column} = {value}, which is no "
                + ("number from 0 to 1" if kind in WITH_STDERR else "finite number")
                + "; look at the model's loss, or for a fault in the task's own code"
            )
    return values, undefined


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
                f"evaluation.downstream.tasks: {task.name!r} cannot be loaded: {_in_words(error)}"
                + _advice(task, stand_in, error)
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
    be others, and what it unpacked by the path alone.
    """
    from datasets import config

    usual = config.HF_DATASETS_CACHE, config.DOWNLOADED_DATASETS_PATH
    if folder is not None:
        config.HF_DATASETS_CACHE, config.DOWNLOADED_DATASETS_PATH = folder, folder / "downloads"
    try:
        yield
    finally:
        config.HF_DATASETS_CACHE, config.DOWNLOADED_DATASETS_PATH = usual


def _advice(task: TaskFile, stand_in: StandIn | None, error: Exception) -> str:
    """Return what may be the matter with a task that cannot be loaded."""
    if isinstance(error, OSError) and error.filename is not None:
        return "\nIf this is where caches are to lie, set HF_HOME to a folder that can be written"
    if stand_in is not None or (
        not task.is_group and read_task(task.path).get("dataset_path") in LOCAL_READERS
    ):
        return ""
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
        _seed_generators()

    task.build_all_requests = build_or_reset


def _seed(tasks: dict[str, Any]) -> None:
    """Put all generators into one state before each task, as lm-eval's ``simple_evaluate`` does
    before all of them."""
    _seed_generators()
    for task in tasks["tasks"].values():
        task.set_fewshot_seed(OTHER_SEED)


def _seed_generators() -> None:
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
