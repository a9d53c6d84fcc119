"""Groups the cells that tables and figures compare: those that differ in optimizer and seed
only."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import nan
from typing import Any

from coupled_adam_bench.results.setups import Setup, labels_of, model_names_of, recipes_of
from coupled_adam_bench.study.catalogue.metrics import Metric
from coupled_adam_bench.study.catalogue.names import ADAM, COUPLED_ADAM
from coupled_adam_bench.study.catalogue.tables import TABLES, Table, comparing_any_number
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import Study

Values = Mapping[tuple[str, str], float]
"""Values of metrics by the id of a cell and the name of a metric."""


PLACE: dict[str, type] = {
    "table": str, "n_params": int, "n_tokens": int, "model": str, "data": str, "recipe": str,
}  # fmt: skip
"""The columns of tests.csv that tell groups apart."""
GROUP_COLUMNS = tuple(PLACE)
GROUP = "group"
"""The key under which a row of a statistic has its group."""


@dataclass(frozen=True)
class Group:
    """Cells of a table that differ in optimizer and seed only; ``cells`` is by the optimizer's key,
    as in the study."""

    table: str
    n_tokens: int
    setup: Setup
    tokens_label: str
    model_label: str
    cells: Mapping[str, tuple[Cell, ...]]

    @property
    def first(self) -> Cell:
        """One of the group's cells, for what all of them share."""
        return next(iter(self.cells.values()))[0]

    @property
    def place(self) -> tuple[str, int, int, str, str, str]:
        """The values of ``GROUP_COLUMNS``, which identify the group."""
        setup = self.setup
        return (self.table, setup.n_params, self.n_tokens, setup.model, setup.data, setup.recipe)

    @property
    def columns(self) -> dict[str, Any]:
        """The values of ``GROUP_COLUMNS`` by name, and the group itself: what a row of a statistic
        about it begins with."""
        return dict(zip(GROUP_COLUMNS, self.place, strict=True)) | {GROUP: self}

    @property
    def optimizer_labels(self) -> dict[str, str]:
        """The label of each optimizer, by its key."""
        return {key: cells[0].optimizer.label for key, cells in self.cells.items()}

    @cached_property
    def ids(self) -> dict[str, tuple[str, ...]]:
        """The ids of each optimizer's cells by its key: they tell whether another table has the
        same runs."""
        ids = {}
        for key, cells in self.cells.items():
            ids[key] = tuple(cell.id for cell in cells)
        return ids

    @cached_property
    def plain_keys(self) -> dict[str, str]:
        """The keys of the optimizers, by their names without their own learning rate.

        If several optimizers differ only in the rate, the first counts.
        """
        keys: dict[str, str] = {}
        for key, cells in self.cells.items():
            keys.setdefault(cells[0].optimizer.names(leave_out=["lr_factor"])[0], key)
        return keys

    @property
    def references(self) -> list[str]:
        """The keys of the optimizers that the others are compared with: Adam and Coupled Adam, or
        the first if the group has neither."""
        found = [self.plain_keys[kind] for kind in (ADAM, COUPLED_ADAM) if kind in self.plain_keys]
        return found or [next(iter(self.cells))]

    def by_seed(self, values: Values, metric: Metric) -> dict[str, dict[int, float]]:
        """Return a metric's values by optimizer and seed; a value that is not there is NaN."""
        by_seed = {}
        for key, cells in self.cells.items():
            by_seed[key] = {cell.seed: values.get((cell.id, metric.name), nan) for cell in cells}
        return by_seed


@dataclass(frozen=True)
class Layout:
    """The tables of a plan with their groups; ``setups`` is by the id of a cell, ``labels`` are
    those of the models."""

    plan: Plan
    metrics: dict[str, Metric]
    setups: dict[str, Setup]
    labels: dict[Setup, str]
    tables: dict[str, Table]
    groups: dict[str, tuple[Group, ...]]

    @cached_property
    def all_groups(self) -> tuple[Group, ...]:
        """The groups of all tables, in their order."""
        return tuple(chain.from_iterable(self.groups.values()))

    @cached_property
    def columns(self) -> dict[str, tuple[Metric, ...]]:
        """The metrics of each table."""
        columns = {}
        for name, table in self.tables.items():
            columns[name] = tuple(self.metrics[column] for column in table.columns)
        return columns

    @cached_property
    def optimizer_labels(self) -> dict[str, dict[str, str]]:
        """The labels of each table's optimizers by their keys."""
        labels: dict[str, dict[str, str]] = {}
        for name, groups in self.groups.items():
            labels[name] = {}
            for group in groups:
                labels[name] |= group.optimizer_labels
        return labels


def layout_of(plan: Plan) -> Layout:
    """Return the layout of a plan; ``ValueError`` for tables that cannot be made or rows that would
    look the same."""
    tables: dict[str, Table] = {}
    metrics: dict[str, Metric] = {}
    setups: dict[str, Setup] = {}
    data_names: dict[str, str] = {}
    members: dict[tuple[str, int, Setup], dict[str, dict[str, Cell]]] = {}
    studies = list(plan.studies.values())
    recipes, models = recipes_of(studies, plan.name), model_names_of(studies)
    for study in studies:
        metrics |= study.metrics
        _add_tables(tables, study)
    for planned in plan.blocks:
        study, table = planned.study, planned.block.table
        for cell in planned.cells:
            setup = Setup(
                cell.n_params,
                models[study.name, cell.model.name],
                cell.data_id,
                recipes[study.name],
            )
            # A cell is trained and evaluated once, so it cannot have the values of two recipes.
            if setups.setdefault(cell.id, setup) != setup:
                raise ValueError(
                    f"{setups[cell.id].recipe} and {study.name} share cells, such as {cell.id}, and"
                    " evaluate them in different ways: make `evaluation` and its paths the same,"
                    " or run them as two studies"
                )
            data_names[cell.data_id] = study.data.name
            if table is not None:
                optimizers = members.setdefault((table, cell.n_tokens, setup), {})
                optimizers.setdefault(cell.optimizer.key, {}).setdefault(cell.id, cell)
    labels = labels_of(plan, setups, data_names)
    # The report has the tables of the paper in its order, before those that studies declare.
    tables = {name: tables[name] for name in dict.fromkeys((*TABLES, *tables)) if name in tables}
    groups: dict[str, tuple[Group, ...]] = dict.fromkeys(tables, ())
    for name, n_tokens, setup in sorted(
        members, key=lambda member: (member[1], member[2].n_params)
    ):
        groups[name] += (
            _group(tables, name, n_tokens, setup, labels, members[name, n_tokens, setup]),
        )
    return Layout(plan, metrics, setups, labels, tables, groups)


def _add_tables(tables: dict[str, Table], study: Study) -> None:
    for name, table in study.tables_of_blocks.items():
        if tables.setdefault(name, table) != table:
            raise ValueError(
                f"{study.name}: tables.{name}: another study of the plan has a table of this name,"
                " which is not the same; make them the same, or rename one"
            )


def _settings(cell: Cell) -> tuple[Any, ...]:
    return cell.optimizer.model_dump(exclude={"label"}), cell.tuning


def _group(
    tables: Mapping[str, Table],
    name: str,
    n_tokens: int,
    setup: Setup,
    labels: Mapping[Setup, str],
    optimizers: Mapping[str, Mapping[str, Cell]],
) -> Group:
    cells = {key: tuple(by_id.values()) for key, by_id in optimizers.items()}
    first = next(iter(cells.values()))[0]
    group = Group(name, n_tokens, setup, first.length_label, labels[setup], cells)
    place = f"at {group.model_label} parameters and {group.tokens_label} tokens"
    for key, (one, *others) in cells.items():
        settings = _settings(one)
        if any(_settings(other) != settings for other in others):
            raise ValueError(
                f"grid: {name} has two different optimizers with the key {key} {place}; make them"
                " the same, or run them as two studies"
            )
    allowed = tables[name].rules.optimizers
    if allowed is not None and len(cells) != allowed:
        raise ValueError(
            f"grid: {name} compares {allowed} optimizers, and has {len(cells)} {place}"
            f" ({', '.join(cells)}); give it {allowed}, or use"
            f" {comparing_any_number({**TABLES, **tables}.values())}, which compares any number"
        )
    return group


def longest_groups(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """Return the group with the most tokens of each size."""
    found: dict[Setup, Group] = {}
    for group in groups:
        other = found.setdefault(group.setup, group)
        if group.n_tokens > other.n_tokens:
            found[group.setup] = group
    return tuple(found.values())
