"""What a study could have found, and how many seeds find what it saw: ``power.csv`` and "How many seeds?".

Power is that of the one-sided t-test at the paper's level [P]: unpaired, as the paper tests, and paired by seed. The
power of a test for the very difference that it saw is not given: it is a function of the p-value and says nothing more.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev
from typing import Any

from markupsafe import Markup

from coupled_adam_bench.report.blocks import Block, Column, Fold, Grid, Heading, Text, symbol
from coupled_adam_bench.report.formats import MISSING, plural, significant
from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group, Layout
from coupled_adam_bench.results.pairs import paired_values, rivals
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import PLACE, Field, Material, Row, Section, Statistic
from coupled_adam_bench.statistics.scores import LOSS
from coupled_adam_bench.statistics.student import ALPHA
from coupled_adam_bench.statistics.t_test import summarize
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.tools.estimate.study import Estimate
from coupled_adam_bench.tools.estimate.text import align, count

POWER = 0.8
"""The probability with which a difference should be found: the usual one (Cohen 1988)."""
CAUTION = 0.8
"""The spread that ``seeds_cautious`` takes is this upper confidence limit of the one seen (Browne 1995)."""
MOST_SEEDS = 10_000
UNPAIRED, PAIRED = "unpaired", "paired"
DESIGNS = (UNPAIRED, PAIRED)


def _degrees(n: int, design: str) -> int:
    return 2 * n - 2 if design == UNPAIRED else n - 1


def power_of(effect: float, n: int, design: str, alpha: float = ALPHA) -> float:
    """Return the power of the one-sided t-test with ``n`` seeds of each optimizer.

    ``effect`` is the true difference over the standard deviation of ``design``: of an optimizer's values, or of the
    paired differences. T has a noncentral distribution (Cohen 1988).
    """
    from scipy.special import nctdtr, stdtrit

    df = _degrees(n, design)
    shift = effect * math.sqrt(n / 2 if design == UNPAIRED else n)
    return float(1 - nctdtr(df, shift, stdtrit(df, 1 - alpha)))


@cache
def detectable_effect(n: int, design: str, power: float = POWER, alpha: float = ALPHA) -> float:
    """Return the effect that ``n`` seeds find with the probability ``power``; NaN for fewer than two seeds."""
    from scipy.optimize import brentq

    if n < 2:
        return math.nan
    high = 1.0
    while power_of(high, n, design, alpha) < power:
        high *= 2
    return float(brentq(lambda effect: power_of(effect, n, design, alpha) - power, 0.0, high, xtol=1e-12))


def seeds_needed(effect: float, design: str, power: float = POWER, alpha: float = ALPHA) -> float:
    """Return the fewest seeds, of each optimizer, with at least ``power``; NaN if ``MOST_SEEDS`` are too few."""
    if math.isnan(effect) or effect <= 0 or power_of(effect, MOST_SEEDS, design, alpha) < power:
        return math.nan
    low, high = 1, 2
    while power_of(effect, high, design, alpha) < power:
        low, high = high, min(2 * high, MOST_SEEDS)
    while high - low > 1:  # the power grows with the seeds
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(effect, middle, design, alpha) >= power else (middle, high)
    return float(high)


def cautious(sd: float, df: int) -> float:
    """Return the upper confidence limit ``CAUTION`` of a standard deviation, whose estimate has ``df``."""
    from scipy.special import chdtri

    return sd * math.sqrt(df / chdtri(df, CAUTION))


def _spread(
    study: StudyResults, group: Group, metric: Metric, pair: tuple[str, str], design: str
) -> tuple[int, float, float, int, str]:
    """Return seeds, difference, standard deviation with its degrees of freedom, and a reason for NaN."""
    nan = math.nan
    if design == PAIRED:
        paired = paired_values(study, group, metric, *pair)
        differences = list(paired.differences.values())
        n = len(differences)
        if paired.n_missing:
            return n, nan, nan, 0, f"{paired.n_missing} of {len(paired.seeds)} seeds without both values"
        if n < 2:
            return n, differences[0] if differences else nan, nan, 0, "one seed"
        return n, fmean(differences), stdev(differences), n - 1, ""
    values = study.samples(group, metric)
    samples = [summarize(values[key]) for key in pair]
    n = min(sample.n for sample in samples)
    if any(math.isnan(sample.mean) for sample in samples):
        return n, nan, nan, 0, "values missing"
    if n < 2:
        return n, samples[0].mean - samples[1].mean, nan, 0, "one seed"
    df = sum(sample.n - 1 for sample in samples)
    pooled = math.sqrt(sum((sample.n - 1) * sample.sd**2 for sample in samples) / df)
    return n, samples[0].mean - samples[1].mean, pooled, df, ""


def _row(study: StudyResults, group: Group, metric: Metric, pair: tuple[str, str], design: str) -> dict[str, Any]:
    n, difference, sd, df, reason = _spread(study, group, metric, pair, design)
    effect, careful = math.nan, math.nan
    if not reason and sd > 0:
        effect, careful = abs(difference) / sd, abs(difference) / cautious(sd, df)
    seeds = seeds_needed(effect, design)
    if not reason and sd == 0:
        reason = "all values of an optimizer are equal" if design == UNPAIRED else "all differences are equal"
    elif not reason and math.isnan(seeds):
        reason = "no difference" if difference == 0 else f"more than {MOST_SEEDS:,} seeds"
    return dict(zip(GROUP_COLUMNS, group.place, strict=True)) | {
        "metric": metric.name, "optimizer": pair[0], "reference": pair[1], "design": design, "n": n,
        "difference": difference, "sd": sd, "detectable": detectable_effect(n, design) * sd,
        "seeds": seeds, "seeds_cautious": seeds_needed(careful, design), "reason": reason,
    }  # fmt: skip


def power_rows(study: StudyResults) -> Iterator[dict[str, Any]]:
    """Yield the rows of power.csv: each optimizer of a group against its first one, in each metric and design."""
    for name, groups in study.groups.items():
        for group in groups:
            for metric in study.columns(name):
                for pair in rivals(group):
                    yield from (_row(study, group, metric, pair, design) for design in DESIGNS)


@dataclass(frozen=True)
class Compared:
    """Two optimizers of a group in a metric: the rows of ``power.csv`` by design, and the hours of one more seed."""

    group: Group
    metric: Metric
    rows: Mapping[str, Row]
    hours: float

    def label(self, column: str) -> str:
        """Return the label of ``optimizer`` or ``reference``."""
        return self.group.optimizer_labels[self.rows[UNPAIRED][column]]

    @property
    def difference(self) -> str:
        """The difference that was seen."""
        return significant(self.rows[UNPAIRED]["difference"])

    def detectable(self, design: str) -> str:
        """Return the difference that the seeds find."""
        return significant(self.rows[design]["detectable"])

    def needed(self, design: str) -> str:
        """Return the seeds needed, such as ``4 (9)``: with the spread seen, and with a cautious one."""
        row = self.rows[design]
        if math.isnan(row["seeds"]):
            return MISSING
        careful = MISSING if math.isnan(row["seeds_cautious"]) else f"{row['seeds_cautious']:,.0f}"
        return f"{row['seeds']:,.0f} ({careful})"

    def cost(self, design: str) -> str:
        """Return the hours of the seeds needed, of both optimizers."""
        seeds = self.rows[design]["seeds"]
        return MISSING if math.isnan(seeds) else count(self.hours * seeds)

    @property
    def remark(self) -> str:
        """Why there is no number, by design where it differs."""
        reasons = {design: self.rows[design]["reason"] for design in DESIGNS}
        if len(set(reasons.values())) == 1:
            return str(reasons[UNPAIRED])
        return "; ".join(f"{design}: {reason}" for design, reason in reasons.items() if reason)


def hours_per_seed(estimate: Estimate, group: Group, keys: Iterable[str]) -> float:
    """Return the hours of one more seed of some optimizers of a group, each trained by itself from the beginning."""
    hours = {each.cell.id: each.hours * each.cell.n_tokens / each.part.n_tokens for each in estimate.cells}
    return sum(hours[group.cells[key][0].id] for key in keys)


def compared(layout: Layout, rows: Iterable[Row], estimate: Estimate) -> dict[str, list[Compared]]:
    """Return the comparisons of each table; places and optimizers that the study no longer has are left out."""
    groups = {group.place: group for of_table in layout.groups.values() for group in of_table}
    found: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        place = tuple(row[name] for name in GROUP_COLUMNS)
        found.setdefault((place, row["metric"], row["optimizer"], row["reference"]), {})[row["design"]] = row
    tables: dict[str, list[Compared]] = {name: [] for name in layout.groups}
    for (place, metric, *keys), by_design in found.items():
        if place in groups and metric in layout.metrics and set(keys) <= groups[place].cells.keys():
            hours = hours_per_seed(estimate, groups[place], keys)
            shown = Compared(groups[place], layout.metrics[metric], by_design, hours)
            tables[shown.group.table].append(shown)
    return {name: shown for name, shown in tables.items() if shown}


def _columns(unit: str) -> list[Column[Compared]]:
    return [
        Column(Markup("<i>D</i>"), lambda each: each.group.tokens_label),
        Column(Markup("<i>N</i>"), lambda each: each.group.model_label),
        Column("Metric", lambda each: symbol(each.metric), "row"),
        Column("Optimizer", lambda each: each.label("optimizer")),
        Column("minus", lambda each: each.label("reference")),
        Column("seeds", lambda each: str(each.rows[UNPAIRED]["n"]), "number"),
        Column("difference", lambda each: each.difference, "number"),
        Column("unpaired", lambda each: each.detectable(UNPAIRED), "number", over="they find"),
        Column("paired", lambda each: each.detectable(PAIRED), "number", over="they find"),
        Column("unpaired", lambda each: each.needed(UNPAIRED), "number", over="needed"),
        Column("paired", lambda each: each.needed(PAIRED), "number", over="needed"),
        Column("unpaired", lambda each: each.cost(UNPAIRED), "number", over=f"{unit} hours"),
        Column("paired", lambda each: each.cost(PAIRED), "number", over=f"{unit} hours"),
        Column("Remark", lambda each: each.remark, "wrap"),
    ]


def _blocks(material: Material) -> Iterator[Block]:
    tables = compared(material.study.layout, material.rows(STATISTIC), material.estimate)
    if not tables:
        return
    yield Text(
        Markup(
            'The columns "they find" say what difference the seeds of this study find with probability {power}, by '
            "one-sided t-tests at {alpha}: unpaired as in the paper's tables, and paired by seed. A smaller difference "
            'may be there although it is not significant. "Needed" says how many seeds of each optimizer find the '
            "difference that was seen, if it is the true one and the spread is that of these seeds; in parentheses, if "
            "the spread is the upper 80 % limit of it (Browne 1995), since a few seeds hardly know their own spread. "
            'Hours are those of all seeds needed. The whole list is <a href="../power.csv">power.csv</a>.'
        ).format(power=f"{100 * POWER:g} %", alpha=f"{100 * ALPHA:g} %")
    )
    columns = _columns("GPU" if material.estimate.on_gpus else "CPU")
    for name, shown in tables.items():
        title = material.study.tables[name].title
        yield Heading(title)
        yield Fold(plural(len(shown), "comparison"), [Grid(f"Power, {title}", columns, shown, tall=True)])


STATISTIC = Statistic(
    file="power.csv",
    columns=PLACE
    | {
        "metric": Field(str, "name of the metric"),
        "optimizer": Field(str, "key of the optimizer"),
        "reference": Field(str, "key of the optimizer that it is compared with"),
        "design": Field(str, "unpaired, as the paper tests, or paired by seed"),
        "n": Field(int, "seeds; unpaired, of the optimizer that has fewer"),
        "difference": Field(float, "the difference seen", "the metric's"),
        "sd": Field(float, "standard deviation of an optimizer's values; paired, of the differences", "the metric's"),
        "detectable": Field(float, "the difference that so many seeds find with a probability of 80 %", "the metric's"),
        "seeds": Field(float, "seeds of each optimizer that find the difference seen, if the spread is sd"),
        "seeds_cautious": Field(float, "the same, if the spread is the upper 80 % limit of sd"),
        "reason": Field(str, "why a number is missing"),
    },
    key=(*GROUP_COLUMNS, "metric", "optimizer", "reference", "design"),
    rows=lambda material: power_rows(material.study),
    section=Section("power", "How many seeds?", _blocks),
)


def describe_power(layout: Layout, rows: Iterable[Row], estimate: Estimate) -> str:
    """Return what ``plan`` says of the loss, given the rows of ``power.csv``; empty where there is no loss."""
    tables = compared(layout, rows, estimate)
    shown = [each for of_table in tables.values() for each in of_table if each.metric.name == LOSS]
    if not shown:
        return ""
    unit = "GPU" if estimate.on_gpus else "CPU"
    header = ["table", "D", "N", "optimizer", "than", "difference", "seeds", "they find", "needed", "needed, paired"]
    table = [[*header, f"{unit} h", f"{unit} h, paired"]]
    for each in shown:
        place = [layout.tables[each.group.table].title, each.group.tokens_label, each.group.model_label]
        pair = [each.label("optimizer"), each.label("reference"), each.difference, str(each.rows[UNPAIRED]["n"])]
        needed = [each.detectable(UNPAIRED), each.needed(UNPAIRED), each.needed(PAIRED)]
        table.append([*place, *pair, *needed, each.cost(UNPAIRED), each.cost(PAIRED)])
    title = (
        f"Seeds that find the difference in loss with probability {100 * POWER:g} %, one-sided t-test at "
        f"{100 * ALPHA:g} %,\nby the spread seen so far and, in parentheses, by its upper limit; what the seeds that "
        "are there find;\nthe hours of all seeds needed"
    )
    return "\n".join(["", title, *align(table, n_left=5), ""])
