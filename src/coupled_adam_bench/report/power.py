"""The section "How many seeds?" of the report, and the same of the loss for ``plan``: what seeds find and cost."""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coupled_adam_bench.report.formats import MISSING, significant
from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group, Layout
from coupled_adam_bench.statistics.power import DESIGNS, PAIRED, POWER, UNPAIRED, read_power
from coupled_adam_bench.statistics.scores import LOSS
from coupled_adam_bench.statistics.student import ALPHA
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.tools.estimate.study import Estimate
from coupled_adam_bench.tools.estimate.text import align, count

Row = Mapping[Hashable, Any]


@dataclass(frozen=True)
class PowerRow:
    """A metric of a group and two optimizers, as text; the mappings are by design.

    ``seeds`` is such as ``4 (9)``: with the spread seen, and with a cautious one. ``hours`` are those of so many seeds
    of both optimizers.
    """

    group: Group
    metric: Metric
    optimizer: str
    reference: str
    n: str
    difference: str
    detectable: dict[str, str]
    seeds: dict[str, str]
    hours: dict[str, str]
    reason: str


@dataclass(frozen=True)
class PowerSection:
    """What the template prints; ``tables`` is by the study's table, ``unit`` is what the hours are of."""

    tables: dict[str, tuple[PowerRow, ...]]
    unit: str
    power: str
    alpha: str


def _seeds(row: Row) -> str:
    if math.isnan(row["seeds"]):
        return MISSING
    careful = MISSING if math.isnan(row["seeds_cautious"]) else f"{row['seeds_cautious']:,.0f}"
    return f"{row['seeds']:,.0f} ({careful})"


def _reason(reasons: Mapping[str, str]) -> str:
    if len(set(reasons.values())) == 1:
        return reasons[UNPAIRED]
    return "; ".join(f"{design}: {reason}" for design, reason in reasons.items() if reason)


def hours_per_seed(estimate: Estimate, group: Group, keys: Iterable[str]) -> float:
    """Return the hours of one more seed of some optimizers of a group, each trained by itself from the beginning."""
    hours = {each.cell.id: each.hours * each.cell.n_tokens / each.part.n_tokens for each in estimate.cells}
    return sum(hours[group.cells[key][0].id] for key in keys)


def _power_row(layout: Layout, group: Group, rows: Mapping[str, Row], estimate: Estimate) -> PowerRow:
    unpaired = rows[UNPAIRED]
    labels = group.optimizer_labels
    optimizer, reference = unpaired["optimizer"], unpaired["reference"]
    per_seed = hours_per_seed(estimate, group, (optimizer, reference))
    return PowerRow(
        group=group,
        metric=layout.metrics[unpaired["metric"]],
        optimizer=labels[optimizer],
        reference=labels[reference],
        n=str(unpaired["n"]),
        difference=significant(unpaired["difference"]),
        detectable={design: significant(rows[design]["detectable"]) for design in DESIGNS},
        seeds={design: _seeds(rows[design]) for design in DESIGNS},
        hours={
            design: MISSING if math.isnan(rows[design]["seeds"]) else count(per_seed * rows[design]["seeds"])
            for design in DESIGNS
        },
        reason=_reason({design: rows[design]["reason"] for design in DESIGNS}),
    )


def power_section(layout: Layout, power_csv: Path, estimate: Estimate) -> PowerSection:
    """Return the section from ``power.csv``; places that the study no longer has are left out."""
    by_place: dict[tuple[Any, ...], dict[tuple[Any, ...], dict[str, Row]]] = {}
    for row in read_power(power_csv).to_dict("records"):
        pairs = by_place.setdefault(tuple(row[name] for name in GROUP_COLUMNS), {})
        pairs.setdefault((row["metric"], row["optimizer"], row["reference"]), {})[row["design"]] = row
    tables = {}
    for name, groups in layout.groups.items():
        shown = [
            _power_row(layout, group, rows, estimate)
            for group in groups
            for (metric, *keys), rows in by_place.get(group.place, {}).items()
            if metric in layout.metrics and set(keys) <= group.cells.keys()
        ]
        if shown:
            tables[name] = tuple(shown)
    unit = "GPU" if estimate.on_gpus else "CPU"
    return PowerSection(tables, unit, f"{100 * POWER:g} %", f"{100 * ALPHA:g} %")


def describe_power(layout: Layout, power_csv: Path, estimate: Estimate) -> str:
    """Return what ``plan`` says of the loss, with the spread in ``power.csv``; an empty text where there is no loss."""
    section = power_section(layout, power_csv, estimate)
    shown = [row for rows in section.tables.values() for row in rows if row.metric.name == LOSS]
    if not shown:
        return ""
    header = ["table", "D", "N", "optimizer", "than", "difference", "seeds", "they find", "needed", "needed, paired"]
    table = [[*header, f"{section.unit} h", f"{section.unit} h, paired"]]
    for row in shown:
        place = [layout.tables[row.group.table].title, row.group.tokens_label, row.group.model_label]
        found = [row.difference, row.n, row.detectable[UNPAIRED], row.seeds[UNPAIRED], row.seeds[PAIRED]]
        table.append([*place, row.optimizer, row.reference, *found, row.hours[UNPAIRED], row.hours[PAIRED]])
    title = (
        f"Seeds that find the difference in loss with probability {section.power}, one-sided t-test at "
        f"{section.alpha},\nby the spread seen so far and, in parentheses, by its upper limit; what the seeds that are "
        "there find;\nthe hours of all seeds needed"
    )
    return "\n".join(["", title, *align(table, n_left=5), ""])
