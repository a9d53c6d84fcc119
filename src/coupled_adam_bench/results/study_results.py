"""The results of a study as tables, figures and report need them, and pairs of optimizers seed by
seed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isnan, nan
from typing import Any

from pandas import DataFrame

from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group, Layout, Values
from coupled_adam_bench.results.rounding import difference
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.catalog.tables import Table
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.plan import Plan


def records(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame."""
    rows = []
    for row in frame.to_dict("records"):
        rows.append({str(name): value for name, value in row.items()})
    return rows


@dataclass(frozen=True)
class StudyResults:
    """A plan with its layout, ``results.csv`` and, once they are made, the rows of
    ``tests.csv``."""

    layout: Layout
    results: DataFrame
    tests: DataFrame | None = None

    def __post_init__(self) -> None:
        """Refuse the results of another study."""
        if others := set(self.results["study"]) - {self.plan.name}:
            raise ValueError(
                f"results.csv: study {sorted(others)}, the plan is of {self.plan.name!r}; collect"
                " again"
            )

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
    def measured(self) -> dict[tuple[str, str, str], float]:
        """All values by cell, task and metric."""
        columns = (self.results[name].tolist() for name in ("cell", "task", "metric", "value"))
        return {
            (cell, task, metric): value for cell, task, metric, value in zip(*columns, strict=True)
        }

    @cached_property
    def values(self) -> Values:
        """The values of the metrics that tables can show."""
        return self.values_of({name: metric.task for name, metric in self.layout.metrics.items()})

    @cached_property
    def scores(self) -> Values:
        """What is compared: the values or, of a metric that is best at a value, their distances
        from it."""
        scores = dict(self.values)
        for name, metric in self.layout.metrics.items():
            if metric.best_at is not None:
                for cell in self.plan.cells:
                    scores[cell, name] = abs(
                        difference(self.values.get((cell, name), nan), self.best(cell, metric))
                    )
        return scores

    @cached_property
    def of_texts(self) -> dict[tuple[str, str, str, str], float]:
        """What texts have of themselves, by data, recipe, task and the name in ``results.csv``.

        Evaluations of an older version do not have it, so one cell with the same text is enough.
        """
        wanted = set()
        for metric in self.layout.metrics.values():
            if isinstance(metric.best_at, str):
                wanted.add((metric.task, metric.best_at))
        found: dict[tuple[str, str, str, str], float] = {}
        for (cell, task, name), value in self.measured.items():
            if (task, name) in wanted and not isnan(value):
                setup = self.layout.setups[cell]
                found.setdefault((setup.data, setup.recipe, task, name), value)
        return found

    def best(self, cell: str, metric: Metric) -> float:
        """Return where a metric is best in a cell, given its id; NaN for one that is best in a
        direction."""
        if isinstance(metric.best_at, str):
            setup = self.layout.setups[cell]
            return self.of_texts.get((setup.data, setup.recipe, metric.task, metric.best_at), nan)
        return nan if metric.best_at is None else metric.best_at

    def best_in(self, group: Group, metric: Metric) -> list[float]:
        """Return the values at which a metric is best in the cells of a group, ascending; none if
        none is known."""
        ids = [cell.id for cells in group.cells.values() for cell in cells]
        found = {self.best(cell, metric) for cell in ids}
        return sorted(best for best in found if not isnan(best))

    def lacks_best(self, group: Group, metric: Metric) -> str:
        """Return why the values of a group cannot be compared, where it is not known what is best;
        else nothing."""
        if metric.best_at is None or self.best_in(group, metric):
            return ""
        return (
            f"results.csv has no {metric.best_at}, so what is best is not known; evaluate with this"
            " version"
        )

    def values_of(self, tasks: Mapping[str, str]) -> Values:
        """Return the values of metrics, given for the name of each the task under which
        ``results.csv`` has it."""
        return {
            (cell, name): value
            for (cell, task, name), value in self.measured.items()
            if tasks.get(name) == task
        }

    def value(self, cell: Cell, metric: str) -> float:
        """Return a metric's value in a cell, given the metric's name; NaN if it is not there."""
        return self.values.get((cell.id, metric), nan)

    def columns(self, table: str) -> tuple[Metric, ...]:
        """Return the metrics of a table."""
        return tuple(self.layout.metrics[name] for name in self.tables[table].columns)

    def optimizer_labels(self, table: str) -> dict[str, str]:
        """Return the labels of a table's optimizers by their keys."""
        return {
            key: label
            for group in self.groups[table]
            for key, label in group.optimizer_labels.items()
        }

    def scores_by_seed(self, group: Group, metric: Metric) -> dict[str, dict[int, float]]:
        """Return what is compared of a metric, ``scores``, by optimizer and seed; a value that is
        not there is NaN."""
        return group.by_seed(self.scores, metric)

    def samples(self, group: Group, metric: Metric) -> dict[str, list[float]]:
        """Return a metric's values over seeds by optimizer; a value that is not there is NaN."""
        return group.samples(self.values, metric)

    def by_seed(self, group: Group, metric: Metric) -> dict[str, dict[int, float]]:
        """Return a metric's values by optimizer and seed; a value that is not there is NaN."""
        return group.by_seed(self.values, metric)

    @cached_property
    def comparisons(self) -> dict[tuple[tuple[Any, ...], str], list[dict[str, Any]]]:
        """The rows of ``tests.csv`` by place and name of the metric."""
        assert self.tests is not None, "these results were made without tests"
        rows: dict[tuple[tuple[Any, ...], str], list[dict[str, Any]]] = {}
        for row in records(self.tests):
            rows.setdefault((tuple(row[name] for name in GROUP_COLUMNS), row["metric"]), []).append(
                row
            )
        return rows

    def comparisons_of(self, group: Group, metric: Metric) -> list[dict[str, Any]]:
        """Return the rows of ``tests.csv`` on a group and metric."""
        return self.comparisons[group.place, metric.name]

    def bold(self, group: Group, metric: Metric) -> str | None:
        """Return the key of the optimizer whose value is printed bold, or None."""
        return next(
            (str(row["optimizer"]) for row in self.comparisons_of(group, metric) if row["bold"]),
            None,
        )


def rivals(group: Group) -> Iterator[tuple[str, str]]:
    """Yield (optimizer, reference): each optimizer of a group and its first one, Adam in the
    paper's tables."""
    reference, *others = group.cells
    yield from ((key, reference) for key in others)


def paired_differences(
    study: StudyResults, group: Group, metric: Metric, one: str, other: str
) -> dict[int, float]:
    """Return the differences of two optimizers by every seed that either has, NaN where a value is
    missing.

    Those of a metric that is best at a value are of the distances from it.
    """
    by_seed = study.scores_by_seed(group, metric)
    first, second = by_seed[one], by_seed[other]
    seeds = dict.fromkeys((*first, *second))
    return {seed: difference(first.get(seed, nan), second.get(seed, nan)) for seed in seeds}
