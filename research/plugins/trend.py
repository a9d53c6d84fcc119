"""A plug-in (docs/plugins.md): how the difference between two optimizers grows with tokens and
parameters, as ``trend.csv`` and a section of the report.

    statistics:
      files:
        - {name: trend, path: research.plugins.trend.Growth}

The paper says that the gain of Coupled Adam in loss grows with D [P]. For each table, metric and
pair of optimizers a line is fitted within each seed, over all sizes together
(``coupled_adam_bench.statistics.lines``): ``difference = a + b log2 D + c log2 N + noise``, where
the difference is optimizer minus the first optimizer of the table. The term ``tokens`` is b,
``parameters`` is c, and ``centre`` the difference at the mean log D and log N. Each is tested over
seeds, one-sided; ``p_holm`` corrects over the tests of a table on the same term. A row for each N
has the tokens at which the fitted difference is 0, with Fieller's interval (1954), if they lie
between the least and the most D of the study.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from markupsafe import Markup
from research.plugins.trend_lines import crossing, trends

from coupled_adam_bench.page.blocks import (
    Block,
    Fold,
    Grid,
    Heading,
    Items,
    Kind,
    P,
    Text,
    listed,
    with_arrow,
)
from coupled_adam_bench.page.formats import (
    MISSING,
    p_equals,
    p_value,
    plural,
    significant,
)
from coupled_adam_bench.page.formats import interval as interval_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import Material, Row, Statistic
from coupled_adam_bench.statistics.lines import (
    PARAMETERS,
    TOKENS,
    Trend,
    upper_tail,
)
from coupled_adam_bench.statistics.plug_ins import StatisticPlugIn
from coupled_adam_bench.statistics.student import (
    ALPHA,
    NO_SPREAD,
    holm,
    interval,
    t_ratio,
    two_sided_p,
)
from coupled_adam_bench.study.catalogue.metrics import LOSS
from coupled_adam_bench.study.plan.cells import readable_count

CENTRE = "centre"
"""The term that is the difference at the mean log D and log N."""
CROSSING = "tokens at 0, N = "
"""A term of each size, whose number of parameters follows: at how many tokens the fitted difference
is 0."""


def _rows(trend: Trend) -> list[dict[str, Any]]:
    """Return the rows of trend.csv on one line, without Holm's correction; a term that does not
    vary has NaN."""
    sign = 1 if trend.metric.larger_wins else -1
    fit, setup = trend.fit, trend.groups[0].setup
    rows = []
    for term in (CENTRE, TOKENS, PARAMETERS):
        reasons = [fit.reason]
        if trend.n_missing:
            reasons.append(f"{trend.n_missing} of {trend.n + trend.n_missing} pairs missing")
        terms = (CENTRE, *trend.terms)
        if term in terms:
            index, df = terms.index(term), fit.df
            estimate, error = float(fit.estimates[index]), fit.standard_error(index)
        else:
            estimate = error = df = math.nan
            reasons.append(f"one number of {term}")
        if error == 0:
            reasons.append(NO_SPREAD if estimate else "nothing varies")
        low, high = interval(estimate, error, df)
        rows.append(
            {
                "table": trend.groups[0].table,
                "data": setup.data,
                "recipe": setup.recipe,
                "metric": trend.metric.name,
                "optimizer": trend.optimizer,
                "reference": trend.reference,
                "term": term,
                "estimate": estimate,
                "se": error,
                "df": df,
                "low": low,
                "high": high,
                "p_value": upper_tail(sign * estimate, error, df),
                "n": trend.n,
                "n_missing": trend.n_missing,
                "n_seeds": fit.n_seeds,
                "reason": "; ".join(filter(None, reasons)),
            }
        )
    # A crossing is a number of tokens and no slope: it has an interval, but no test.
    for n_params in sorted({group.setup.n_params for group in trend.groups}):
        tokens, low, high, reason = crossing(trend, n_params)
        at = {
            "term": f"{CROSSING}{n_params}",
            "estimate": tokens,
            "low": low,
            "high": high,
            "reason": reason,
        }
        rows.append(rows[0] | dict.fromkeys(("se", "df", "p_value", "p_holm"), math.nan) | at)
    return rows


def trend_rows(study: StudyResults) -> Iterator[dict[str, Any]]:
    """Yield the rows of trend.csv; Holm's correction is over the tests of a table on the same
    term."""
    for name in study.layout.tables:
        of_table = [
            row for trend in trends(study, name, study.layout.columns[name]) for row in _rows(trend)
        ]
        for term in (CENTRE, TOKENS, PARAMETERS):
            of_term = [row for row in of_table if row["term"] == term]
            for row, p_holm in zip(of_term, holm([row["p_value"] for row in of_term]), strict=True):
                row["p_holm"] = p_holm
        yield from of_table


def _interval(row: Row) -> str:
    if math.isnan(row["estimate"]):
        return MISSING
    estimate, ends = significant(row["estimate"]), interval_of(row["low"], row["high"])
    return estimate if ends == MISSING else f"{estimate} {ends}"


def _answer(row: Row, gain: str, where: str) -> str:
    """Return what the test of the loss against tokens says."""
    if math.isnan(row["p_value"]):
        return f"Whether the {gain} grows with D cannot be told{where}: {row['reason']}."
    two_sided = _two_sided(row)
    word = "is not shown to grow or to shrink"
    corrected = ""
    if two_sided < ALPHA:
        # The one-sided test is in the direction of the gain.
        word = "grows" if row["p_value"] < ALPHA else "shrinks"
        corrected = ", before any correction"
    if word == "grows":
        word += "" if row["p_holm"] < ALPHA else ", but not after the correction,"
        corrected = f", and one-sided after Holm's correction {p_equals(row['p_holm'])}"
    return (
        f"The {gain} in loss {word} with D{where}: each doubling changes the difference by"
        f" {_interval(row)} nat/token (p {p_equals(two_sided)}{corrected})."
    )


def _two_sided(row: Row) -> float:
    """Return the two-sided p-value of a slope, which goes with its two-sided interval."""
    return two_sided_p(row["p_value"], t_ratio(row["estimate"], row["se"]), row["df"])


def _crossed(row: Row) -> str:
    """Return where the fitted losses of a size cross."""
    if math.isnan(row["estimate"]):
        return f"are not seen to cross ({row['reason']})"
    interval = f"95 % interval {_count(row['low'])} to {_count(row['high'])}"
    return f"cross at D = {_count(row['estimate'])} ({row['reason'] or interval})"


def _count(tokens: float) -> str:
    return readable_count(round(tokens)) if tokens < 1e18 else "more than 10^18"


def crossing_sentences(rows: Sequence[Row], labels: Mapping[str, str]) -> list[str]:
    """Return where the fitted losses of each pair of optimizers cross, given the rows of a
    table."""
    found = []
    for row in rows:
        if row["metric"] == LOSS.name and row["term"].startswith(CROSSING):
            size = readable_count(int(row["term"].removeprefix(CROSSING)))
            pair = f"{labels[row['optimizer']]} and {labels[row['reference']]}"
            found.append(f"The fitted losses of {pair} at N = {size} {_crossed(row)}.")
    return found


_HEADS: tuple[tuple[str, Kind], ...] = (
    ("Metric", "row"),
    ("Optimizer", "text"),
    ("minus", "text"),
    (Markup("doubling of <i>D</i>"), "number"),
    P,
    (Markup("<i>p</i> of growth with <i>D</i>, one-sided, Holm"), "number"),
    (Markup("doubling of <i>N</i>"), "number"),
    ("From", "text"),
    ("Remark", "wrap"),
)


def _blocks(material: Material, statistic: Statistic) -> Iterator[Block]:
    study, rows = material.study, material.rows(statistic)
    if not rows:
        return
    yield Text(
        Markup(
            "The paper says that the gain of Coupled Adam in loss grows with <i>D</i>. This section"
            " fits a line within each seed to all sizes of a table: the difference of two"
            " optimizers, paired by seed, against log <i>D</i> and log <i>N</i>. It tests the mean"
            " of the lines by Student's <i>t</i> over the seeds, so three seeds find only clear"
            " growth. Intervals and their <i>p</i> are two-sided. The corrected <i>p</i> is"
            " one-sided, as the claim is: that the difference moves in favour of the optimizer."
            " Unless a stated plan has it, read it as exploratory. All lines: <a"
            ' href="../{0}">{0}</a>.'
        ).format(statistic.file)
    )
    for name, table in study.layout.tables.items():
        of_table = [row for row in rows if row["table"] == name]
        tokens = [row for row in of_table if row["term"] == TOKENS]
        parameters = [row for row in of_table if row["term"] == PARAMETERS]
        if not tokens:
            continue
        labels, lines = study.layout.optimizer_labels[name], []
        # A sentence names data and recipe only where the table has lines of several.
        several = len({(row["data"], row["recipe"]) for row in tokens}) > 1
        yield Heading(table.title)
        for row, other in zip(tokens, parameters, strict=True):
            metric = study.layout.metrics[row["metric"]]
            pair = (labels[row["optimizer"]], labels[row["reference"]])
            if metric == LOSS:
                where = f" on {row['data']} ({row['recipe']})" if several else ""
                yield Text(_answer(row, "gain of {} over {}".format(*pair), where))
            counts = f"{plural(row['n'], 'pair')}, {plural(row['n_seeds'], 'seed')}"
            numbers = (
                _interval(row),
                p_value(_two_sided(row)),
                p_value(row["p_holm"]),
                _interval(other),
            )
            lines.append([with_arrow(metric), *pair, *numbers, counts, row["reason"]])
        yield Items(crossing_sentences(of_table, labels), small=True)
        caption = "What each doubling adds to the difference, with its 95 % interval"
        grid = Grid(f"Trends of {table.title}", listed(*_HEADS), lines, caption=caption, tall=True)
        yield Fold(plural(len(lines), "line"), [grid])


class Growth(StatisticPlugIn):
    """What each doubling of tokens and of parameters adds to the difference of two optimizers."""

    contract = 1
    title = "Does the gain grow?"
    columns: ClassVar[Mapping[str, type]] = {
        "table": str,
        "data": str,
        "recipe": str,
        "metric": str,
        "optimizer": str,
        "reference": str,
        "term": str,
        "estimate": float,
        "se": float,
        "df": float,
        "low": float,
        "high": float,
        "p_value": float,
        "p_holm": float,
        "n": int,
        "n_missing": int,
        "n_seeds": int,
        "reason": str,
    }
    key = ("table", "data", "recipe", "metric", "optimizer", "reference", "term")

    def rows(self, material: Material) -> Iterator[dict[str, Any]]:
        """Yield the rows of all terms and crossings."""
        return trend_rows(material.study)

    def blocks(self, material: Material, statistic: Statistic) -> Iterator[Block]:
        """Yield what the test of the loss says, where lines cross, and the numbers of all lines."""
        return _blocks(material, statistic)
