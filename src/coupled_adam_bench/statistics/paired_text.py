"""``paired.csv``: two models of one seed, compared on the same documents of tasks and of held-out
text.

In each group every optimizer is compared with the first one, seed by seed and over all seeds. A
document is there once for each seed, and these are alike: so over seeds its differences are
averaged first, and then count once.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.records.kept import PairedWindows, paired_windows, read_scores
from coupled_adam_bench.records.stored import measurement_of
from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group
from coupled_adam_bench.results.study_results import rivals
from coupled_adam_bench.statistics.declared import ALL_SEEDS, Statistic
from coupled_adam_bench.statistics.student import NO_SPREAD
from coupled_adam_bench.statistics.units import (
    Estimate,
    average,
    document_means,
    mcnemar_p,
    of_documents,
    of_held_out,
)
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.catalogue.metrics import LOSS, METRICS
from coupled_adam_bench.study.catalogue.stages import STAGES
from coupled_adam_bench.study.plan.cells import Cell

ACC = METRICS["acc"]
AVERAGE = "average"
"""A value of ``task``: the mean over all of them."""
DOCUMENTS, HELD_OUT = "documents", "held-out documents"
"""Values of ``unit``."""
MCNEMAR, T_TEST = "McNemar", "paired t-test"
TOO_FEW = "too few to tell a spread"
Floats = NDArray[np.float64]
Row = dict[str, Any]
Found = TypeVar("Found")
Scores = Mapping[str, Mapping[str, float]]
"""The accuracies of a cell by task and document."""
Pairs = dict[str, tuple[Floats, Floats]]
"""The values of two cells by task, in the order of the same documents."""


def pairs_of(scores: Callable[[str], Scores], first: Cell, second: Cell) -> Pairs:
    """Return the accuracies of two cells on the same documents; ``ValueError`` if these are not the
    same."""
    ours, theirs = scores(first.id), scores(second.id)
    for task in ours.keys() | theirs.keys():
        if alone := len(ours.get(task, {}).keys() ^ theirs.get(task, {}).keys()):
            raise ValueError(
                f"{first.id} and {second.id}: {alone} documents of {task} that only one of them has"
            )
    pairs: Pairs = {}
    for task, values in ours.items():
        their_values = [theirs[task][document] for document in values]
        pairs[task] = (np.array(list(values.values())), np.array(their_values))
    return pairs


def _scores(runs: Path, cell: Cell) -> Scores:
    """Return the accuracies of a cell by task and document; ``ValueError`` if the cell has no
    accuracies."""
    scores = read_scores(
        measurement_of(STAGES[ACC.stage], cell.study, cell.data_id, runs), cell.id, ACC.name
    )
    if not scores:
        raise ValueError(
            f"{cell.id}: no documents with {ACC.name}: it has diverged, or was measured without"
            " them"
        )
    return scores


def _why_no_test(estimate: Estimate) -> str:
    """Return why there is no test of an estimate, or nothing."""
    if math.isnan(estimate.standard_error):
        return TOO_FEW
    return NO_SPREAD if math.isnan(estimate.p_value) else ""


def _numbers(estimate: Estimate, first: Floats, second: Floats, sign: int) -> Row:
    """Return what all rows with numbers have; ``sign`` is 1 where more is better."""
    low, high = estimate.interval
    better = sign * np.sign(first - second)
    return {
        "n": estimate.n,
        "difference": estimate.difference,
        "low": low,
        "high": high,
        "p_value": estimate.p_value,
        "n_better": int((better > 0).sum()),
        "n_worse": int((better < 0).sum()),
        "test": T_TEST,
        "reason": _why_no_test(estimate),
    }


def _gap(unit: str, reason: str) -> Row:
    metric = LOSS if unit == HELD_OUT else ACC
    counts = {"n": 0, "n_better": 0, "n_worse": 0}
    return {
        "unit": unit,
        "task": metric.task,
        "metric": metric.name,
        "test": "",
        "reason": reason,
    } | counts


def _rows_of_seeds(
    unit: str, found: Mapping[int, Found | str], rows: Callable[[Sequence[Found]], Iterable[Row]]
) -> Iterator[Row]:
    """Yield the rows of each seed and of all of them together; text stands for the reason of a seed
    without values."""
    for seed, each in found.items():
        for row in [_gap(unit, each)] if isinstance(each, str) else rows([each]):
            yield row | {"seed": str(seed)}
    if len(found) > 1:
        there = [each for each in found.values() if not isinstance(each, str)]
        without = [str(seed) for seed, each in found.items() if isinstance(each, str)]
        for row in (
            [_gap(unit, f"seed {', '.join(without)}: not there")] if without else rows(there)
        ):
            yield row | {"seed": ALL_SEEDS}


def _held_out(pairs: Sequence[PairedWindows]) -> Iterator[Row]:
    """Yield the row of the loss over one seed or several, in which a document counts once."""
    documents_P = np.concatenate([each.documents for each in pairs])
    n_targets_P = np.concatenate([each.n_targets for each in pairs])
    first_P = np.concatenate([each.first for each in pairs])
    second_P = np.concatenate([each.second for each in pairs])
    n_targets_G, (first_G, second_G) = document_means(documents_P, n_targets_P, first_P, second_P)
    means = [float(np.average(side_G, weights=n_targets_G)) for side_G in (first_G, second_G)]
    row = {
        "unit": HELD_OUT,
        "task": LOSS.task,
        "metric": LOSS.name,
        "mean": means[0],
        "mean_reference": means[1],
    }
    yield row | _numbers(of_held_out(first_G - second_G, n_targets_G), first_G, second_G, sign=-1)


def _documents(of_seeds: Sequence[Pairs]) -> Iterator[Row]:
    """Yield the rows of each task and of their average over one seed or several, in which a
    document counts once."""
    sizes = set()
    for of_seed in of_seeds:
        sizes.add(tuple((task, len(first)) for task, (first, _) in of_seed.items()))
    if len(sizes) > 1:
        yield _gap(DOCUMENTS, "the seeds were scored on different documents")
        return
    pairs: Pairs = {}
    for task in of_seeds[0]:
        firsts = [of_seed[task][0] for of_seed in of_seeds]
        seconds = [of_seed[task][1] for of_seed in of_seeds]
        pairs[task] = (np.mean(firsts, axis=0), np.mean(seconds, axis=0))
    estimates = {task: of_documents(first - second) for task, (first, second) in pairs.items()}
    rows = {task: _numbers(estimates[task], *pairs[task], sign=1) for task in pairs}
    for task, sides in pairs.items():
        row = rows[task] | {
            "mean": float(np.mean(sides[0])),
            "mean_reference": float(np.mean(sides[1])),
        }
        # McNemar's test counts documents that are right or wrong; means over seeds are neither.
        if len(of_seeds) == 1 and np.isin(sides, (0.0, 1.0)).all():
            row |= {
                "test": MCNEMAR,
                "p_value": mcnemar_p(row["n_better"], row["n_worse"]),
                "reason": "",
            }
        rows[task] = row | {"unit": DOCUMENTS, "task": task, "metric": ACC.name}
        yield rows[task]
    every_first = np.concatenate([first for first, _ in pairs.values()])
    every_second = np.concatenate([second for _, second in pairs.values()])
    whole: Row = {"unit": DOCUMENTS, "task": AVERAGE, "metric": ACC.name}
    for name in ("mean", "mean_reference"):
        whole[name] = math.fsum(row[name] for row in rows.values()) / len(rows)
    estimate = average(list(estimates.values()))
    yield whole | _numbers(estimate, every_first, every_second, sign=1)


def _group_rows(group: Group, runs: Path) -> Iterator[Row]:
    by_seed: dict[str, dict[int, Cell]] = {}
    every: dict[str, Cell] = {}
    for optimizer, of_optimizer in group.cells.items():
        by_seed[optimizer] = {cell.seed: cell for cell in of_optimizer}
        every |= {cell.id: cell for cell in of_optimizer}
    scores = cache(lambda cell_id: _scores(runs, every[cell_id]))  # of one group at a time
    for key, reference in rivals(group):
        theirs = by_seed[reference]
        cells = {
            seed: (cell, theirs[seed]) for seed, cell in by_seed[key].items() if seed in theirs
        }
        windows: dict[int, PairedWindows | str] = {}
        documents: dict[int, Pairs | str] = {}
        for seed, pair in cells.items():
            windows[seed] = _or_reason(partial(paired_windows, *pair, runs))
            documents[seed] = _or_reason(partial(pairs_of, scores, *pair))
        rows = (
            *_rows_of_seeds(HELD_OUT, windows, _held_out),
            *_rows_of_seeds(DOCUMENTS, documents, _documents),
        )
        yield from (
            group.columns | {"optimizer": key, "reference": reference} | row for row in rows
        )


def _or_reason(read: Callable[[], Found]) -> Found | str:
    """Return what ``read`` returns or, if files are missing, damaged or do not go together, why."""
    try:
        return read()
    except (ValueError, OSError) as error:
        return str(error)


def compare_text(groups: Iterable[Group], runs: Path = paths.RUNS) -> Iterator[Row]:
    """Yield the comparisons of groups; a gap has its reason."""
    for group in groups:
        yield from _group_rows(group, runs)


STATISTIC = Statistic(
    file="paired.csv",
    columns={
        "table": str,
        "n_params": int,
        "n_tokens": int,
        "optimizer": str,
        "reference": str,
        "seed": str,
        "unit": str,
        "task": str,
        "metric": str,
        "n": int,
        "mean": float,
        "mean_reference": float,
        "difference": float,
        "low": float,
        "high": float,
        "p_value": float,
        "n_better": int,
        "n_worse": int,
        "test": str,
        "reason": str,
        "model": str,
        "data": str,
        "recipe": str,
    },
    key=(*GROUP_COLUMNS, "optimizer", "reference", "seed", "unit", "task"),
    rows=lambda material: compare_text(material.study.layout.all_groups, material.runs),
)
