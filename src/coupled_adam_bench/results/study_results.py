"""The results of a study, and the facts that are made of them once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import isnan, log, nan
from typing import Any

from pandas import DataFrame

from coupled_adam_bench.results.choices import edges_of
from coupled_adam_bench.results.facts import CENTERED, Comparison, Fact, Facts
from coupled_adam_bench.results.groups import Group, Layout, Values
from coupled_adam_bench.results.sample import difference
from coupled_adam_bench.study.catalogue.metrics import HELD_OUT_SIZES, LOSS, METRICS, Metric
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.plan.tuning import chosen_settings


def records(frame: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame."""
    rows = []
    for row in frame.to_dict("records"):
        rows.append({str(name): value for name, value in row.items()})
    return rows


@dataclass(frozen=True)
class Decided:
    """What was decided of the metrics of each place: all comparisons, and what is bold.

    Both are by place and name of the metric. ``bold`` is the key of the optimizer whose value
    tables print bold, or None.
    """

    comparisons: Mapping[tuple[tuple[Any, ...], str], Sequence[Comparison]]
    bold: Mapping[tuple[tuple[Any, ...], str], str | None]


@dataclass(frozen=True)
class StudyResults:
    """A plan with its layout, ``results.csv`` and the facts that follow from them.

    ``decided`` has, once they are made, the comparisons by place and metric.
    """

    layout: Layout
    results: DataFrame
    decided: "Decided | None" = None

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

    def values_of(self, tasks: Mapping[str, str]) -> Values:
        """Return the values of metrics, given for the name of each the task under which
        ``results.csv`` has it."""
        return {
            (cell, name): value
            for (cell, task, name), value in self.measured.items()
            if tasks.get(name) == task
        }

    def value(self, cell: Cell, metric: Metric) -> float:
        """Return a metric's value in a cell; NaN if it is not there."""
        return self.values.get((cell.id, metric.name), nan)

    @cached_property
    def facts(self) -> Facts:
        """The facts of all places and metrics, those that no table shows among them."""
        facts: dict[tuple[tuple[Any, ...], str], dict[str, Fact]] = {}
        metrics = METRICS | self.layout.metrics
        sizes = self.values_of(dict.fromkeys(HELD_OUT_SIZES, "test"))
        centered = self.values_of(dict.fromkeys(metrics, CENTERED))
        for group in self.layout.all_groups:
            edges = {key: self._edges(cells[0]) for key, cells in group.cells.items()}
            held_out = {key: _held_out(cells, sizes) for key, cells in group.cells.items()}
            for metric in metrics.values():
                place = group.place, metric.name
                without_mean = group.by_seed(centered, metric)
                scores = group.by_seed(self.scores, metric)
                best = self._best_in(group, metric)
                facts[place] = {}
                for key, by_seed in group.by_seed(self.values, metric).items():
                    tokens, documents = held_out[key]
                    facts[place][key] = Fact(
                        group,
                        metric,
                        key,
                        by_seed,
                        without_mean[key],
                        scores[key],
                        best,
                        edges[key],
                        tokens,
                        documents,
                        guessing=log(group.first.vocab_size) if metric == LOSS else nan,
                        bold=self.decided is not None and self.decided.bold.get(place) == key,
                        against=self._against(place, key),
                    )
        return facts

    def _best_in(self, group: Group, metric: Metric) -> tuple[float, ...]:
        """Return the values at which a metric is best in the cells of a group, ascending; none if
        none is known."""
        ids = chain.from_iterable(group.ids.values())
        found = {self.best(cell, metric) for cell in ids}
        return tuple(sorted(best for best in found if not isnan(best)))

    def _edges(self, cell: Cell) -> tuple[str, ...]:
        """Return the settings of a tuned cell that lie at the edge of what its trial tried."""
        if cell.tuning is None or cell.id == cell.slot:
            return ()
        tuning = self.plan.tunings[cell.tuning]
        found = edges_of(tuning, chosen_settings(tuning, cell))
        return tuple(f"{text}, the {end}" for text, end in found)

    def _against(self, place: tuple[tuple[Any, ...], str], key: str) -> dict[str, Comparison]:
        """Return the comparisons of an optimizer by its rivals, each seen from it."""
        found = {}
        comparisons = () if self.decided is None else self.decided.comparisons.get(place, ())
        for each in comparisons:
            if each.optimizer == key:
                found[each.rival] = each
            elif each.rival == key:
                found[each.optimizer] = each.reversed
        return found

    def at(self, group: Group, metric: Metric | str) -> Mapping[str, Fact]:
        """Return the facts of a metric at a place by optimizer; ``KeyError`` for a metric that no
        study of the plan can have."""
        return self.facts[group.place, metric if isinstance(metric, str) else metric.name]


def _held_out(cells: Sequence[Cell], sizes: Values) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the tokens and the documents of the held-out text of cells, where they are known."""
    found = []
    for size in HELD_OUT_SIZES:
        of_cells = [sizes.get((cell.id, size), nan) for cell in cells]
        found.append(tuple(value for value in of_cells if not isnan(value)))
    tokens, documents = found
    return tokens, documents


def rivals(group: Group) -> Iterator[tuple[str, str]]:
    """Yield (optimizer, reference): each optimizer of a group and its first one, Adam in the
    paper's tables."""
    reference, *others = group.cells
    yield from ((key, reference) for key in others)
