"""The results of a study as tables, figures and report need them, made once for all of these."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import nan
from pathlib import Path
from typing import Any

from pandas import DataFrame

from coupled_adam_bench.results.collect import read_results
from coupled_adam_bench.results.comparisons import read_tests
from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group, Layout, Values, layout_of
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.catalog.tables import Table
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.plan import Plan

Place = tuple[Any, ...]
"""The values of ``GROUP_COLUMNS``, which identify a group."""


@dataclass(frozen=True)
class StudyResults:
    """A plan with its layout, ``results.csv`` and, once they are made, the rows of ``tests.csv``."""

    layout: Layout
    results: DataFrame
    tests: DataFrame | None = None

    def __post_init__(self) -> None:
        """Refuse the results of another study."""
        if others := set(self.results["study"]) - {self.plan.name}:
            raise ValueError(f"results.csv: study {sorted(others)}, the plan is of {self.plan.name!r}; collect again")

    @property
    def plan(self) -> Plan:
        """The plan that the results belong to."""
        return self.layout.plan

    @property
    def tables(self) -> dict[str, Table]:
        """The tables of the study by name, in the order of the report."""
        return self.layout.tables

    @property
    def groups(self) -> dict[str, tuple[Group, ...]]:
        """The groups of each table, in the order of tokens and parameters."""
        return self.layout.groups

    @cached_property
    def values(self) -> Values:
        """The values of the metrics that tables can show."""
        return self.values_of({name: metric.task for name, metric in self.layout.metrics.items()})

    def values_of(self, tasks: Mapping[str, str]) -> Values:
        """Return the values of metrics, given for the name of each the task under which ``results.csv`` has it."""
        columns = (self.results[name].tolist() for name in ("cell", "task", "metric", "value"))
        return {
            (cell, metric): value
            for cell, task, metric, value in zip(*columns, strict=True)
            if tasks.get(metric) == task
        }

    def value(self, cell: Cell, metric: str) -> float:
        """Return a metric's value in a cell, given the metric's name; NaN if it is not there."""
        return self.values.get((cell.id, metric), nan)

    def columns(self, table: str) -> tuple[Metric, ...]:
        """Return the metrics of a table."""
        return tuple(self.layout.metrics[name] for name in self.tables[table].columns)

    def optimizer_labels(self, table: str) -> dict[str, str]:
        """Return the labels of a table's optimizers by their keys."""
        return {key: label for group in self.groups[table] for key, label in group.optimizer_labels.items()}

    def samples(self, group: Group, metric: Metric) -> dict[str, list[float]]:
        """Return a metric's values over seeds by optimizer; a value that is not there is NaN."""
        return group.samples(self.values, metric)

    def by_seed(self, group: Group, metric: Metric) -> dict[str, dict[int, float]]:
        """Return a metric's values by optimizer and seed; a value that is not there is NaN."""
        return group.by_seed(self.values, metric)

    @cached_property
    def comparisons(self) -> dict[tuple[Place, str], list[dict[Hashable, Any]]]:
        """The rows of ``tests.csv`` by group and name of the metric."""
        assert self.tests is not None, "these results were made without tests"
        rows: dict[tuple[Place, str], list[dict[Hashable, Any]]] = {}
        for row in self.tests.to_dict("records"):
            rows.setdefault((tuple(row[name] for name in GROUP_COLUMNS), row["metric"]), []).append(row)
        return rows

    def comparisons_of(self, group: Group, metric: Metric) -> list[dict[Hashable, Any]]:
        """Return the rows of ``tests.csv`` on a group and metric; ``ValueError`` if there are none."""
        if rows := self.comparisons.get((group.place, metric.name)):
            return rows
        raise ValueError(
            f"tests.csv: no row for {group.table}, {group.setup.n_params} parameters, {group.n_tokens} tokens, "
            f"{metric.name}; run the tests of this results.csv again"
        )

    def bold(self, group: Group, metric: Metric) -> str | None:
        """Return the key of the optimizer whose value is printed bold, or None."""
        return next((str(row["optimizer"]) for row in self.comparisons_of(group, metric) if row["bold"]), None)


def load_results(plan: Plan, results_csv: Path, tests_csv: Path | None = None) -> StudyResults:
    """Read the results of a plan and, where they are needed, its tests."""
    results = read_results(results_csv)
    return StudyResults(layout_of(plan), results, None if tests_csv is None else read_tests(tests_csv))
