"""What a study could have found, and how many seeds find what it saw: ``power.csv`` and "How many
seeds?".

Power is that of the one-sided t-test at the paper's level [P]: unpaired, as the paper tests, and
paired by seed. The power of a test for the very difference that it saw is not given: it is a
function of the p-value and says nothing more.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from markupsafe import Markup
from scipy.optimize import brentq
from scipy.special import nctdtr, stdtrit

from coupled_adam_bench.page.blocks import (
    PLACE_COLUMNS,
    Block,
    Column,
    Fold,
    Grid,
    Heading,
    Text,
    label_in,
    symbol,
)
from coupled_adam_bench.page.formats import MISSING, plural, significant
from coupled_adam_bench.results.groups import GROUP_COLUMNS, PLACE, Group
from coupled_adam_bench.results.sample import difference as difference_of
from coupled_adam_bench.results.sample import summarize
from coupled_adam_bench.results.study_results import StudyResults, rivals
from coupled_adam_bench.statistics.declared import Material, Row, Section, Statistic
from coupled_adam_bench.statistics.student import ALPHA
from coupled_adam_bench.study.catalogue.metrics import Metric

POWER = 0.8
"""The probability with which a difference should be found: the usual one (Cohen 1988)."""
MOST_SEEDS = 10_000
UNPAIRED, PAIRED = "unpaired", "paired"
DESIGNS = (UNPAIRED, PAIRED)


def power_of(effect: float, n: int, design: str, alpha: float = ALPHA) -> float:
    """Return the power of the one-sided t-test with ``n`` seeds of each optimizer.

    ``effect`` is the true difference over the standard deviation of ``design``: of an optimizer's
    values, or of the paired differences. T has a noncentral distribution (Cohen 1988).
    """
    df = 2 * n - 2 if design == UNPAIRED else n - 1
    shift = effect * math.sqrt(n / 2 if design == UNPAIRED else n)
    return float(1 - nctdtr(df, shift, stdtrit(df, 1 - alpha)))


@cache
def detectable_effect(n: int, design: str) -> float:
    """Return the effect that ``n`` seeds find with the probability ``POWER``; NaN for fewer than
    two seeds."""
    if n < 2:
        return math.nan
    high = 1.0
    while power_of(high, n, design) < POWER:
        high *= 2
    return float(brentq(lambda effect: power_of(effect, n, design) - POWER, 0.0, high, xtol=1e-12))


def seeds_needed(effect: float, design: str, alpha: float = ALPHA) -> float:
    """Return the fewest seeds, of each optimizer, with at least ``POWER``; NaN if ``MOST_SEEDS``
    are too few."""
    if math.isnan(effect) or effect <= 0:
        return math.nan
    numbers = range(2, MOST_SEEDS + 1)
    place = bisect_left(numbers, POWER, key=lambda n: power_of(effect, n, design, alpha))
    return float(numbers[place]) if place < len(numbers) else math.nan


def _row(
    study: StudyResults, group: Group, metric: Metric, pair: tuple[str, str], design: str
) -> dict[str, Any]:
    seeds, reason = math.nan, ""
    facts = study.at(group, metric)
    # Pairs are one sample, of differences; otherwise each optimizer has its own.
    if design == PAIRED:
        differences = list(facts[pair[0]].minus(facts[pair[1]]).values())
        samples = [summarize(differences)]
        if n_missing := sum(map(math.isnan, differences)):
            reason = f"{n_missing} of {len(differences)} seeds without both values"
    else:
        samples = [summarize(list(facts[key].scores.values())) for key in pair]
        if any(math.isnan(sample.mean) for sample in samples):
            reason = "values missing"
    n = min(sample.n for sample in samples)
    difference = (
        difference_of(samples[0].mean, samples[1].mean) if design == UNPAIRED else samples[0].mean
    )
    # Student's t-test takes the spread to be the same, so it is pooled.
    df = sum(sample.n - 1 for sample in samples)
    sd = (
        math.sqrt(sum((sample.n - 1) * sample.sd**2 for sample in samples) / df)
        if n > 1
        else math.nan
    )
    if not reason and n < 2:
        reason = "one seed"
    elif not reason and sd == 0:
        reason = "no spread over seeds"
    elif not reason:
        seeds = seeds_needed(abs(difference) / sd, design)
        reason = f"more than {MOST_SEEDS:,} seeds" if math.isnan(seeds) else ""
    return group.columns | {
        "metric": metric.name,
        "optimizer": pair[0],
        "reference": pair[1],
        "design": design,
        "n": n,
        "difference": difference,
        "sd": sd,
        "detectable": detectable_effect(n, design) * sd if sd > 0 else math.nan,
        "seeds": seeds,
        "reason": reason,
    }


def power_rows(study: StudyResults) -> Iterator[dict[str, Any]]:
    """Yield the rows of power.csv: each optimizer of a group against its first one, in each metric
    and design."""
    for name, groups in study.layout.groups.items():
        for group in groups:
            for metric in study.layout.columns[name]:
                for pair in rivals(group):
                    yield from (_row(study, group, metric, pair, design) for design in DESIGNS)


def _needed(row: Row) -> str:
    return MISSING if math.isnan(row["seeds"]) else f"{row['seeds']:,.0f}"


def _columns(metrics: Mapping[str, Metric]) -> tuple[Column[Row], ...]:
    return (
        *PLACE_COLUMNS,
        Column("Metric", lambda row: symbol(metrics[row["metric"]]), "row"),
        Column("Optimizer", label_in("optimizer")),
        Column("minus", label_in("reference")),
        Column("Test", lambda row: row["design"]),
        Column("seeds", lambda row: str(row["n"]), "number"),
        Column("difference", lambda row: significant(row["difference"]), "number"),
        Column("they find", lambda row: significant(row["detectable"]), "number"),
        Column("needed", _needed, "number"),
        Column("Remark", lambda row: row["reason"], "wrap"),
    )


def _blocks(material: Material) -> Iterator[Block]:
    shown = list(material.by_table(STATISTIC))
    # Groups of one optimizer have no tests, and so no power to tell.
    if not shown:
        return
    yield Text(
        Markup(
            'The column "they find" says what difference the seeds of this study find with'
            " probability {power}, by one-sided t-tests at {alpha}: unpaired as in the paper's"
            " tables, and paired by seed. A smaller difference may be there although it is not"
            " significant. These tests are not the one that decides: two-sided and corrected, it"
            ' needs at least as many seeds. "Needed" says how many seeds of each optimizer find the'
            " difference that was seen, if it is the true one and the spread is that of these"
            " seeds. A few seeds hardly know their own spread. The whole list is <a"
            ' href="../power.csv">power.csv</a>.'
        ).format(power=f"{100 * POWER:g} %", alpha=f"{100 * ALPHA:g} %")
    )
    columns = _columns(material.study.layout.metrics)
    for table, rows in shown:
        grid = Grid(f"Power, {table.title}", columns, rows, tall=True)
        yield Heading(table.title)
        yield Fold(plural(len(rows), "test"), [grid])


STATISTIC = Statistic(
    file="power.csv",
    columns=PLACE
    | {
        "metric": str,
        "optimizer": str,
        "reference": str,
        "design": str,
        "n": int,
        "difference": float,
        "sd": float,
        "detectable": float,
        "seeds": float,
        "reason": str,
    },
    key=(*GROUP_COLUMNS, "metric", "optimizer", "reference", "design"),
    rows=lambda material: power_rows(material.study),
    section=Section("power", "How many seeds?", _blocks),
)
