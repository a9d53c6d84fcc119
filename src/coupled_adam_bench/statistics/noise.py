"""The spread of each number, split into where it comes from: ``noise.csv``.

A block of the grid that crosses ``seeds`` with ``data_seeds`` gives three parts: initial weights, order of the data,
and the rest, which is their interaction and the rounding. A block without ``data_seeds`` changes both with one seed and
gives their sum. Which text and questions an evaluation has is a part of its own: cells that are measured on the same
ones share it, so that it is no part of the spread over seeds.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from markupsafe import Markup

from coupled_adam_bench.report.blocks import Block, Column, Fold, Grid, Text, symbol
from coupled_adam_bench.report.formats import MISSING, significant
from coupled_adam_bench.results.groups import Setup
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import PLACE, Field, Material, Row, Section, Statistic
from coupled_adam_bench.statistics.sampling import SamplingVariances, sampling_variances
from coupled_adam_bench.statistics.variance_components import MISSING as NO_COMPONENT
from coupled_adam_bench.statistics.variance_components import Component, one_way, two_way
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.catalog.tables import PAPER_COLUMNS
from coupled_adam_bench.study.cells import Cell, readable_count
from coupled_adam_bench.study.config import GridBlock

SEEDS, INIT, ORDER, REST, EVALUATION = "seeds", "initial weights", "order of the data", "rest", "evaluation"
"""Values of ``source``; ``seeds`` are both seeds at once, ``rest`` is interaction and rounding, and ``evaluation``
which text and questions the evaluation has."""
GROUP_COLUMNS = ("n_params", "n_tokens", "optimizer", "model", "data", "recipe", "block")
Parts = list[tuple[str, Component]]
"""Components by their source."""


def seed_parts(values: Sequence[float], n_seeds: int, n_orders: int | None) -> tuple[Parts, str]:
    """Return the components of values over seeds, and why there are none.

    ``values`` are those of ``n_seeds`` seeds or, if ``n_orders`` is given, of the cross of both, the order of the data
    changing faster.
    """
    if n_orders is None:
        sources = [SEEDS]
    elif n_orders == 1:
        sources = [INIT]
    elif n_seeds == 1:
        sources = [ORDER]
    else:
        sources = [INIT, ORDER, REST]
    missing = sum(not math.isfinite(value) for value in values)
    if missing:
        return [(source, NO_COMPONENT) for source in sources], f"{missing} of {len(values)} values missing"
    if len(values) < 2:
        return [(source, NO_COMPONENT) for source in sources], "one run has no spread"
    found = np.array(values, dtype=np.float64)
    components = two_way(found.reshape(n_seeds, -1)) if len(sources) > 1 else (one_way(found),)
    return list(zip(sources, components, strict=True)), ""


def evaluation_part(variances: Sequence[float]) -> tuple[Component, str]:
    """Return the mean sampling variance of the cells that have one; it has no interval here."""
    finite = [variance for variance in variances if math.isfinite(variance)]
    if not finite:
        return NO_COMPONENT, "no losses of windows, or no standard errors, are kept"
    mean = math.fsum(finite) / len(finite)
    return Component(mean, math.nan, math.nan, 0), ""


def design_of(block: GridBlock) -> str:
    """Return in words which seeds a block has."""
    if block.data_seeds is None:
        return f"{len(block.seeds)} seeds"
    return f"{len(block.seeds)} seeds x {len(block.data_seeds)} orders"


def _same_place(cell: Cell) -> tuple[str, int, str]:
    return cell.model.name, cell.steps, cell.optimizer.key


def noise_rows(study: StudyResults, sampling: SamplingVariances) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``noise.csv``: for each block, place and metric one for each source."""
    done: set[tuple[str, ...]] = set()
    for planned in study.plan.blocks:
        for _, found in groupby(planned.cells, key=_same_place):
            cells = list(found)
            if (ids := tuple(cell.id for cell in cells)) in done:
                continue
            done.add(ids)
            setup = study.layout.setups[cells[0].id]
            place = {
                "n_params": setup.n_params, "n_tokens": cells[0].n_tokens, "optimizer": cells[0].optimizer.key,
                "model": setup.model, "data": setup.data, "recipe": setup.recipe,
                "block": f"{planned.study.name} {planned.place}", "design": design_of(planned.block),
            }  # fmt: skip
            for metric in study.layout.metrics:
                rows = _metric_rows(planned.block, cells, metric, study.values, sampling)
                yield from (place | {"metric": metric} | row for row in rows)


def _metric_rows(
    block: GridBlock,
    cells: Sequence[Cell],
    metric: str,
    values: Mapping[tuple[str, str], float],
    sampling: SamplingVariances,
) -> Iterator[dict[str, Any]]:
    n_orders = None if block.data_seeds is None else len(block.data_seeds)
    parts, reason = seed_parts([values.get((cell.id, metric), math.nan) for cell in cells], len(block.seeds), n_orders)
    for source, component in parts:
        yield _row(source, component, len(cells), reason)
    variances = [sampling[cell.id, metric] for cell in cells if (cell.id, metric) in sampling]
    if variances:
        component, reason = evaluation_part(variances)
        yield _row(EVALUATION, component, len(cells), reason)


def _row(source: str, component: Component, n: int, reason: str) -> dict[str, Any]:
    return {
        "source": source, "variance": component.variance, "low": component.low, "high": component.high,
        "df": component.df, "n": n, "reason": reason,
    }  # fmt: skip


@dataclass(frozen=True)
class NoiseGroup:
    """Runs that differ in seeds only: what they are called, their seeds, and the rows of ``noise.csv`` by metric."""

    title: str
    optimizer: str
    design: str
    rows: dict[str, list[Row]]


@dataclass(frozen=True)
class _Part:
    """A part of the spread of a metric in a group; ``number`` counts the parts."""

    group: NoiseGroup
    metric: Metric
    number: int
    row: Row


def root(variance: float) -> float:
    """Return a standard deviation; that of an estimated variance below 0 is 0."""
    return math.sqrt(max(0.0, variance)) if not math.isnan(variance) else math.nan


def noise_groups(study: StudyResults, rows: Iterable[Row]) -> list[NoiseGroup]:
    """Return the groups of the rows of ``noise.csv``, in their order."""
    labels = {cell.optimizer.key: cell.optimizer.label for cell in study.plan.cells.values()}
    tokens = {cell.n_tokens: cell.tokens_label or readable_count(cell.n_tokens) for cell in study.plan.cells.values()}
    groups: dict[tuple[Any, ...], NoiseGroup] = {}
    for row in rows:
        key = tuple(row[name] for name in GROUP_COLUMNS)
        if key not in groups:
            setup = Setup(row["n_params"], row["model"], row["data"], row["recipe"])
            size = study.layout.labels.get(setup, readable_count(row["n_params"]))
            title = f"N = {size}, D = {tokens[row['n_tokens']]}"
            groups[key] = NoiseGroup(title, labels[row["optimizer"]], row["design"], {})
        groups[key].rows.setdefault(row["metric"], []).append(row)
    return list(groups.values())


def share(part: _Part) -> str:
    """Return the share of a part in the spread over seeds, of crossed seeds only; an estimate below 0 counts as 0."""
    crossed = (INIT, ORDER, REST)
    parts = [max(0.0, row["variance"]) for row in part.group.rows[part.metric.name] if row["source"] in crossed]
    whole = math.fsum(parts)
    if len(parts) < 3 or part.row["source"] not in crossed or not whole > 0:
        return MISSING
    return f"{max(0.0, part.row['variance']) / whole:.0%}"


def _interval(row: Row) -> str:
    if math.isnan(row["low"]):
        return MISSING
    return f"{significant(root(row['low']))} to {significant(root(row['high']))}"


def _remark(row: Row) -> str:
    return "; ".join(filter(None, (row["reason"], "estimate below 0" if row["variance"] < 0 else "")))


_COLUMNS: tuple[Column[_Part], ...] = (
    Column(
        "Runs",
        lambda part: Markup("<br>").join((part.group.title, part.group.optimizer, part.group.design)),
        "rows",
    ),
    Column("Metric", lambda part: "" if part.number else symbol(part.metric), "row"),
    Column("Source", lambda part: part.row["source"]),
    Column("sd", lambda part: significant(root(part.row["variance"])), "number"),
    Column("interval", lambda part: _interval(part.row), "number"),
    Column("df", lambda part: str(part.row["df"] or MISSING), "number"),
    Column("share", share, "number"),
    Column("Remark", lambda part: _remark(part.row), "wrap"),
)


def _blocks(material: Material) -> Iterator[Block]:
    groups = noise_groups(material.study, rows := material.rows(STATISTIC))
    if not groups:
        return
    how = (
        "Where a block of the grid crosses <code>seeds</code> with <code>data_seeds</code>, the spread is split into "
        "initial weights, order of the data and the rest: their interaction and the rounding."
    )
    if {row["source"] for row in rows} <= {SEEDS, EVALUATION}:
        how = (
            "A seed of this study draws the initial weights and the order of the data together, so their parts cannot "
            "be told apart: only their sum is known. A block of the grid with <code>data_seeds</code> beside "
            "<code>seeds</code> tells them apart."
        )
    yield Text(
        Markup(
            f"{how} The part of the evaluation says how far the number would move with other text and questions of the "
            "same kind. Runs that are measured on the same ones share it, so it is no part of the spread over seeds. "
            'The whole list is <a href="../noise.csv">noise.csv</a>.'
        )
    )
    metrics = material.study.layout.metrics
    shown = [
        _Part(group, metrics[name], number, row)
        for group in groups
        for name in PAPER_COLUMNS
        if name in metrics
        for number, row in enumerate(group.rows.get(name, []))
    ]
    caption = "Components of variance as standard deviations, with 95 % intervals and degrees of freedom"
    note = (
        "A component is an estimate from few runs: its interval says how much it is worth. An estimate below 0 means "
        "that nothing was found; its share is 0."
    )
    table = Grid("Noise", _COLUMNS, shown, caption=caption, tall=True)
    yield Fold("Standard deviations by source", [table, Text(note, small=True)])


STATISTIC = Statistic(
    file="noise.csv",
    columns={
        "n_params": PLACE["n_params"],
        "n_tokens": PLACE["n_tokens"],
        "optimizer": Field(str, "key of the optimizer"),
        "metric": Field(str, "name of the metric"),
        "source": Field(str, "where the spread comes from"),
        "variance": Field(float, "its part of the variance", "the metric's, squared"),
        "low": Field(float, "lower end of its 95 % interval", "the metric's, squared"),
        "high": Field(float, "upper end of its 95 % interval", "the metric's, squared"),
        "df": Field(int, "degrees of freedom"),
        "n": Field(int, "runs"),
        "design": Field(str, "seeds of the block"),
        "reason": Field(str, "why a number is missing"),
        "model": PLACE["model"],
        "data": PLACE["data"],
        "recipe": PLACE["recipe"],
        "block": Field(str, "study and block of the grid"),
    },
    key=(*GROUP_COLUMNS, "metric", "source"),
    rows=lambda material: noise_rows(
        material.study, sampling_variances(material.plan, material.study.results, material.runs)
    ),
    section=Section("noise", "Where the noise comes from", _blocks, "Noise"),
)
