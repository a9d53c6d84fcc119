"""The form in which a stage returns its numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coupled_adam_bench.study.catalog.metrics import METRICS
from coupled_adam_bench.study.cells import Cell

ResultRow = dict[str, Any]
"""One row of results: its task, metric, value and unit."""


@dataclass(frozen=True)
class Evaluation:
    """The numbers of one cell from one stage: rows of ``results.csv``, and what else is kept beside them."""

    results: list[ResultRow]
    undefined: list[str] = field(default_factory=list)
    """The reasons for the values that are NaN."""
    detail: dict[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Contents of further files, which are kept beside the evaluation, by the ends of their names."""


Evaluator = Callable[[Cell, Path], Evaluation]
"""A function that evaluates a cell, given the folder of its model."""


def row(task: str, metric: str, value: float, unit: str = "1") -> ResultRow:
    """Return one row; the unit of a metric in the catalogue is the one declared there."""
    unit = METRICS[metric].unit if metric in METRICS else unit
    return {"task": task, "metric": metric, "value": float(value), "unit": unit}
