"""``paired.csv``: two models of one seed, compared on the same documents of tasks and of held-out text.

In each group every optimizer is compared with the first one, seed by seed and over all seeds. A document is there once
for each seed, and these are alike: so over seeds its differences are averaged first, and then count once.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.evaluation.kept import PairedWindows, paired_windows, read_scores
from coupled_adam_bench.results.comparisons import ALL_SEEDS, AVERAGE, DOCUMENTS, HELD_OUT
from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group, layout_of
from coupled_adam_bench.statistics.declared import PLACE, Field, Statistic
from coupled_adam_bench.statistics.units import Estimate, average, document_means, mcnemar_p, of_documents, of_held_out
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.stored import Measurement, measurement_of
from coupled_adam_bench.study.catalog.metrics import METRICS
from coupled_adam_bench.study.catalog.stages import STAGES
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.plan import Plan

LOSS, ACC = METRICS["loss"], METRICS["acc"]
MCNEMAR, T_TEST = "McNemar", "paired t-test"
TOO_FEW = "too few to tell a spread"
Floats = NDArray[np.float64]
Row = dict[str, Any]
Found = TypeVar("Found")
Pairs = dict[str, tuple[Floats, Floats]]
"""The values of two cells by task, in the order of the same documents."""


class Scores:
    """Reads the accuracies of cells' documents, those of a cell once until it is told to forget them."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._measurements: dict[str, Measurement] = {}
        self._scores: dict[str, dict[str, dict[str, float]]] = {}

    def forget(self) -> None:
        """Free the memory of what was read."""
        self._scores.clear()

    def of(self, cell: Cell) -> dict[str, dict[str, float]]:
        """Return the accuracies of a cell by task and document; ``ValueError`` if it has none."""
        if cell.id not in self._scores:
            key = cell.study.name
            if key not in self._measurements:
                stage = STAGES[ACC.stage]
                self._measurements[key] = measurement_of(stage, cell.study, cell.data_id, self._runs)
            self._scores[cell.id] = read_scores(self._measurements[key], cell.id, ACC.name)
        if not self._scores[cell.id]:
            raise ValueError(f"{cell.id}: no documents with {ACC.name}: it has diverged, or was measured without them")
        return self._scores[cell.id]

    def pairs(self, first: Cell, second: Cell) -> Pairs:
        """Return the accuracies of two cells on the same documents; ``ValueError`` if these are not the same."""
        ours, theirs = self.of(first), self.of(second)
        found: Pairs = {}
        for task in ours.keys() | theirs.keys():
            one, other = ours.get(task, {}), theirs.get(task, {})
            if alone := len(one.keys() ^ other.keys()):
                raise ValueError(f"{first.id} and {second.id}: {alone} documents of {task} that only one of them has")
            found[task] = (np.array(list(one.values())), np.array([other[document] for document in one]))
        return {task: found[task] for task in ours}


def _numbers(estimate: Estimate, first: Floats, second: Floats, sign: int) -> Row:
    """Return what all rows with numbers have; ``sign`` is 1 where more is better."""
    low, high = estimate.interval
    better = sign * np.sign(first - second)
    return {
        "n": estimate.n, "difference": estimate.difference, "low": low, "high": high, "p_value": estimate.p_value,
        "n_better": int((better > 0).sum()), "n_worse": int((better < 0).sum()), "test": T_TEST,
        "reason": TOO_FEW if math.isnan(estimate.standard_error) else "",
    }  # fmt: skip


def _gap(unit: str, reason: str) -> Row:
    numbers = dict.fromkeys(("difference", "low", "high", "p_value", "mean", "mean_reference"), math.nan)
    metric = LOSS if unit == HELD_OUT else ACC
    counts = {"n": 0, "n_better": 0, "n_worse": 0}
    return {"unit": unit, "task": metric.task, "metric": metric.name, "test": "", "reason": reason} | counts | numbers


def held_out_rows(found: Mapping[int, PairedWindows | str]) -> Iterator[Row]:
    """Yield the rows of the loss by seed and over all seeds; text stands for the reason of a seed without windows."""
    pairs = {seed: each for seed, each in found.items() if not isinstance(each, str)}
    for seed, each in found.items():
        row = _gap(HELD_OUT, each) if isinstance(each, str) else _held_out([each])
        yield row | {"seed": str(seed)}
    if len(found) < 2:
        return
    if len(pairs) < len(found):
        yield _gap(HELD_OUT, _incomplete(found)) | {"seed": ALL_SEEDS}
        return
    yield _held_out(list(pairs.values())) | {"seed": ALL_SEEDS}


def _held_out(pairs: Sequence[PairedWindows]) -> Row:
    """Return the row of the loss over one seed or several, in which a document counts once."""
    documents_P, n_targets_P, *sides_P = (
        np.concatenate([getattr(each, name) for each in pairs])
        for name in ("documents", "n_targets", "first", "second")
    )
    n_targets_G, (first_G, second_G) = document_means(documents_P, n_targets_P, *sides_P)
    means = [float(np.average(side_G, weights=n_targets_G)) for side_G in (first_G, second_G)]
    row = {"unit": HELD_OUT, "task": LOSS.task, "metric": LOSS.name, "mean": means[0], "mean_reference": means[1]}
    return row | _numbers(of_held_out(first_G - second_G, n_targets_G), first_G, second_G, sign=-1)


def document_rows(found: Mapping[int, Pairs | str]) -> Iterator[Row]:
    """Yield the rows of each task and of their average, as :func:`held_out_rows`."""
    for seed, each in found.items():
        for row in [_gap(DOCUMENTS, each)] if isinstance(each, str) else _documents(each):
            yield row | {"seed": str(seed)}
    if len(found) < 2:
        return
    pairs = [each for each in found.values() if not isinstance(each, str)]
    shapes = {tuple((task, len(first)) for task, (first, _) in each.items()) for each in pairs}
    if len(pairs) < len(found) or len(shapes) > 1:
        reason = _incomplete(found) if len(pairs) < len(found) else "the seeds were scored on different documents"
        yield _gap(DOCUMENTS, reason) | {"seed": ALL_SEEDS}
        return
    mean: Pairs = {
        task: (np.mean([each[task][0] for each in pairs], axis=0), np.mean([each[task][1] for each in pairs], axis=0))
        for task in pairs[0]
    }
    for row in _documents(mean, one_seed=False):
        yield row | {"seed": ALL_SEEDS}


def _documents(pairs: Pairs, one_seed: bool = True) -> Iterator[Row]:
    estimates = {task: of_documents(first - second) for task, (first, second) in pairs.items()}
    rows = {task: _numbers(estimates[task], *pairs[task], sign=1) for task in pairs}
    for task, sides in pairs.items():
        row = rows[task] | {"mean": float(np.mean(sides[0])), "mean_reference": float(np.mean(sides[1]))}
        if one_seed and np.isin(sides, (0.0, 1.0)).all():  # right or wrong, no probability
            row |= {"test": MCNEMAR, "p_value": mcnemar_p(row["n_better"], row["n_worse"]), "reason": ""}
        rows[task] = row | {"unit": DOCUMENTS, "task": task, "metric": ACC.name}
        yield rows[task]
    every = [np.concatenate([sides[side] for sides in pairs.values()]) for side in (0, 1)]
    means = {name: math.fsum(row[name] for row in rows.values()) / len(rows) for name in ("mean", "mean_reference")}
    whole = {"unit": DOCUMENTS, "task": AVERAGE, "metric": ACC.name}
    yield whole | means | _numbers(average(list(estimates.values())), every[0], every[1], sign=1)


def _incomplete(found: Mapping[int, Any]) -> str:
    without = [str(seed) for seed, each in found.items() if isinstance(each, str)]
    return f"seed {', '.join(without)}: not there"


def _group_rows(group: Group, scores: Scores, runs: Path) -> Iterator[Row]:
    by_seed = {key: {cell.seed: cell for cell in cells} for key, cells in group.cells.items()}
    reference, *others = by_seed
    place = dict(zip(GROUP_COLUMNS, group.place, strict=True)) | {"reference": reference}
    for key in others:
        theirs = by_seed[reference]
        cells = {seed: (cell, theirs[seed]) for seed, cell in by_seed[key].items() if seed in theirs}
        windows: dict[int, PairedWindows | str] = {}
        documents: dict[int, Pairs | str] = {}
        for seed, pair in cells.items():
            windows[seed] = _or_reason(partial(paired_windows, *pair, runs))
            documents[seed] = _or_reason(partial(scores.pairs, *pair))
        for row in (*held_out_rows(windows), *document_rows(documents)):
            yield place | {"optimizer": key} | row
    scores.forget()


def _or_reason(read: Callable[[], Found]) -> Found | str:
    """Return what ``read`` returns or, if files are missing, damaged or do not go together, why."""
    try:
        return read()
    except (ValueError, OSError) as error:
        return str(error)


def compare_text(plan: Plan, runs: Path = paths.RUNS) -> Iterator[Row]:
    """Yield the comparisons of all groups of a plan; a gap has its reason."""
    scores = Scores(runs)
    for groups in layout_of(plan).groups.values():
        for group in groups:
            yield from _group_rows(group, scores, runs)


STATISTIC = Statistic(
    file="paired.csv",
    columns={
        "table": PLACE["table"],
        "n_params": PLACE["n_params"],
        "n_tokens": PLACE["n_tokens"],
        "optimizer": Field(str, "key of the optimizer"),
        "reference": Field(str, "key of the optimizer that it is compared with"),
        "seed": Field(str, f"the seed of both runs, or {ALL_SEEDS}"),
        "unit": Field(str, f"what makes pairs: {DOCUMENTS} of tasks or {HELD_OUT}"),
        "task": Field(str, f"the task, or {AVERAGE} of all tasks"),
        "metric": Field(str, "name of the metric"),
        "n": Field(int, "units"),
        "mean": Field(float, "mean of the optimizer", "the metric's"),
        "mean_reference": Field(float, "mean of the reference", "the metric's"),
        "difference": Field(float, "mean difference", "the metric's"),
        "low": Field(float, "lower end of its 95 % interval", "the metric's"),
        "high": Field(float, "upper end of its 95 % interval", "the metric's"),
        "p_value": Field(float, "two-sided p of the difference"),
        "n_better": Field(int, "units in which the optimizer is better"),
        "n_worse": Field(int, "units in which it is worse"),
        "test": Field(str, "the test whose p it is"),
        "reason": Field(str, "why a number is missing"),
        "model": PLACE["model"],
        "data": PLACE["data"],
        "recipe": PLACE["recipe"],
    },
    key=(*GROUP_COLUMNS, "optimizer", "reference", "seed", "unit", "task"),
    rows=lambda material: compare_text(material.plan, material.runs),
)
