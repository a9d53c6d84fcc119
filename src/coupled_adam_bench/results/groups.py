"""Groups the cells that tables and figures compare: those that differ in optimizer and seed
only."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

from coupled_adam_bench.study.catalogue.metrics import Metric
from coupled_adam_bench.study.catalogue.tables import TABLES, Table, comparing_any_number
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell, readable_count
from coupled_adam_bench.study.settings import Model, Study
from coupled_adam_bench.study.settings.base import as_seen

Values = Mapping[tuple[str, str], float]
"""Values of metrics by the id of a cell and the name of a metric."""


PLACE: dict[str, type] = {
    "table": str, "n_params": int, "n_tokens": int, "model": str, "data": str, "recipe": str,
}  # fmt: skip
"""The columns of tests.csv that tell groups apart."""
GROUP_COLUMNS = tuple(PLACE)
GROUP = "group"
"""The key under which a row of a statistic has its group."""


# The settings of a study that can change a number, data, models and optimizers left out.
_RECIPE: Any = {
    "training": True,
    "evaluation": True,
    "paths": {"word_similarity", "hub_mirror", "tasks"},
}


@dataclass(frozen=True)
class Setup:
    """What cells have in common that differ in tokens, optimizer and seed only.

    ``model`` is the name of the model; where a plan has two models of that name, it also names the
    study. ``data`` is the id of the data. ``recipe`` is the name of the plan or, in a plan whose
    studies train or evaluate in different ways, the name of the first study that does it this way.
    """

    n_params: int
    model: str
    data: str
    recipe: str


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

    def ids(self, key: str) -> tuple[str, ...]:
        """Return the ids of an optimizer's cells, which tell whether another table has the same
        runs."""
        return tuple(cell.id for cell in self.cells[key])

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

    def columns(self, table: str) -> tuple[Metric, ...]:
        """Return the metrics of a table."""
        return tuple(self.metrics[name] for name in self.tables[table].columns)

    def optimizer_labels(self, table: str) -> dict[str, str]:
        """Return the labels of a table's optimizers by their keys."""
        labels: dict[str, str] = {}
        for group in self.groups[table]:
            labels |= group.optimizer_labels
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
    recipes, models = _recipes(studies, plan.name), _model_names(studies)
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
    labels = _labels(plan, setups, data_names)
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


def _recipes(studies: Sequence[Study], whole: str) -> dict[str, str]:
    """Return the name of each study's recipe; all have that of the ``whole`` plan if there is only
    one recipe."""
    by_settings: dict[str, list[str]] = defaultdict(list)
    for study in studies:
        by_settings[json.dumps(study.model_dump(mode="json", include=_RECIPE))].append(study.name)
    if len(by_settings) == 1:
        return dict.fromkeys((study.name for study in studies), whole)
    return {name: names[0] for names in by_settings.values() for name in names}


def _model_names(studies: Sequence[Study]) -> dict[tuple[str, str], str]:
    """Return by study and model the model's name, with a study's name where it stands for different
    models."""
    owners: dict[str, dict[str, str]] = defaultdict(dict)
    for study in studies:
        for model in study.models:
            owners[model.name].setdefault(_settings_of(model), study.name)
    names: dict[tuple[str, str], str] = {}
    for study in studies:
        for model in study.models:
            by_settings = owners[model.name]
            name = model.name
            if len(by_settings) > 1:
                name += f" of {by_settings[_settings_of(model)]}"
            names[study.name, model.name] = name
    return names


def _settings_of(model: Model) -> str:
    return model.model_dump_json(exclude={"label"})


def _add_tables(tables: dict[str, Table], study: Study) -> None:
    for name, table in study.tables_of_blocks.items():
        if tables.setdefault(name, table) != table:
            raise ValueError(
                f"{study.name}: tables.{name}: another study of the plan has a table of this name,"
                " which is not the same; make them the same, or rename one"
            )


def _labels(
    plan: Plan, setups: Mapping[str, Setup], data_names: Mapping[str, str]
) -> dict[Setup, str]:
    """Return what tables print of each setup: the size of its model and, where that is not enough,
    what else differs.

    ``ValueError`` if two of them would still be printed alike.
    """
    sizes: dict[Setup, str] = {}
    for cell_id, setup in setups.items():
        sizes.setdefault(setup, plan.cells[cell_id].model.label or readable_count(setup.n_params))
    # Two sizes that only a computer tells apart are one to the reader of a table.
    alike: dict[str, list[Setup]] = defaultdict(list)
    for setup, size in sizes.items():
        alike[as_seen(size)].append(setup)
    names_of_data = Counter(data_names.values())
    labels: dict[Setup, str] = {}
    for setup, size in sizes.items():
        others = alike[as_seen(size)]
        name = data_names[setup.data]
        texts = {
            "model": setup.model,
            "data": name if names_of_data[name] == 1 else setup.data,
            "recipe": setup.recipe,
        }
        added = []
        for field, text in texts.items():
            if len({getattr(each, field) for each in others}) > 1:
                added.append(text)
        labels[setup] = f"{size} ({', '.join(added)})" if added else size
    # A label that a study chose can look like one that was made longer here.
    first: dict[str, Setup] = {}
    for setup, label in labels.items():
        other = first.setdefault(as_seen(label), setup)
        if other != setup:
            raise ValueError(
                f"models: {other.model} and {setup.model} are both printed as {label!r}, so tables"
                " could not tell them apart; give one of them a label of its own"
            )
    return labels


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
    group = Group(
        name, n_tokens, setup, first.tokens_label or readable_count(n_tokens), labels[setup], cells
    )
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


def plain_keys(group: Group) -> dict[str, str]:
    """Return the keys of a group's optimizers, by their names without their own learning rate.

    If several optimizers differ only in the rate, the first counts.
    """
    keys: dict[str, str] = {}
    for key, cells in group.cells.items():
        keys.setdefault(cells[0].optimizer.names(leave_out=["lr_factor"])[0], key)
    return keys


def longest_groups(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """Return the group with the most tokens of each size."""
    found: dict[Setup, Group] = {}
    for group in groups:
        other = found.setdefault(group.setup, group)
        if group.n_tokens > other.n_tokens:
            found[group.setup] = group
    return tuple(found.values())
