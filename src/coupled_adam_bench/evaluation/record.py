"""The rows of an evaluation file, the form in which a stage returns its numbers."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coupled_adam_bench.cells import Cell
from coupled_adam_bench.plan import Part
from coupled_adam_bench.results.schema import METRICS

Row = dict[str, Any]
Column = tuple[str, str]
"""Task and metric."""


@dataclass(frozen=True)
class Evaluation:
    """Rows of ``results.csv`` and whatever else is worth keeping beside them."""

    results: list[Row]
    undefined: list[str] = field(default_factory=list)
    """Why values among them are NaN."""
    detail: dict[str, Any] = field(default_factory=dict)


Evaluator = Callable[[Cell, Path], Evaluation]
"""Evaluates a cell given its model folder."""


@dataclass(frozen=True)
class Stage:
    """A kind of evaluation: its file, its mathematics and what it costs to start."""

    name: str
    version: int
    columns: tuple[Column, ...]
    """What it always measures."""
    settings: Callable[[Part], dict[str, Any]]
    """Everything but the model that can change its numbers."""
    open: Callable[[Part, str], AbstractContextManager[Evaluator]]
    """Load once what all cells share; the string is the device."""

    def undefined_rows(self) -> list[Row]:
        """Return a NaN row for each column, the result of a diverged cell."""
        return [row(task, metric, math.nan) for task, metric in self.columns]


def table_columns(*tasks: str) -> tuple[Column, ...]:
    """Return the columns of the tables that belong to ``tasks``."""
    return tuple((metric.task, metric.name) for metric in METRICS.values() if metric.task in tasks)


def row(task: str, metric: str, value: float) -> Row:
    """Return one row; the unit is that of the table's column, ``1`` for all other metrics."""
    unit = METRICS[metric].unit if metric in METRICS else "1"
    return {"task": task, "metric": metric, "value": float(value), "unit": unit}
