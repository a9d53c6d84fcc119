"""What lm-eval finds for a model in loaded tasks, and the rows of ``results.csv`` of it."""

import math
import sys
import traceback
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coupled_adam_bench.evaluation.settings import OTHER_SEED
from coupled_adam_bench.evaluation.task_loading import Loaded, in_words, seed_generators
from coupled_adam_bench.evaluation.ties import describe_ties, tied_items
from coupled_adam_bench.records.kept import Document, column_of, documents_of
from coupled_adam_bench.records.stored import ResultRow, row

BOOTSTRAP_ITERS = 2
"""With any number above 0, lm-eval reports the standard error of a mean in closed form; bootstraps
are not used."""
WITH_STDERR = ("acc", "acc_norm")
"""The metrics that are means over items, between 0 and 1, and have a standard error."""


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
                f"downstream task {name!r}{where} cannot be scored: {in_words(error)}"
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
                + (", as for a single item" * (kind != metric))
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


def _seed(tasks: dict[str, Any]) -> None:
    """Put all generators into one state before each task, as lm-eval's ``simple_evaluate`` does
    before all of them."""
    seed_generators()
    for task in tasks["tasks"].values():
        task.set_fewshot_seed(OTHER_SEED)
