"""How the difference between two optimizers grows with tokens and parameters: ``trend.csv``.

The paper says that the gain of Coupled Adam in loss grows with D [P]: that is the one-sided t-test over seeds of what
a doubling of D adds.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from coupled_adam_bench.report.blocks import Block, Column, Figures, Fold, Grid, Heading, Items, Text, with_arrow
from coupled_adam_bench.report.formats import MISSING, p_value, plural, significant
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.corrections import holm
from coupled_adam_bench.statistics.crossings import crossing_sentences
from coupled_adam_bench.statistics.declared import PLACE, Field, Material, Row, Section, Statistic
from coupled_adam_bench.statistics.regression import CENTRE, PARAMETERS, TOKENS, Trend, t_quantile, trends, upper_tail
from coupled_adam_bench.statistics.scores import LOSS
from coupled_adam_bench.statistics.student import ALPHA
from coupled_adam_bench.study.catalog.metrics import Metric


def _rows(trend: Trend) -> list[dict[str, Any]]:
    """Return the rows of trend.csv on one line, without Holm's correction; a term that does not vary has NaN."""
    sign = 1 if trend.metric.higher_is_better else -1
    fit, setup = trend.fit, trend.groups[0].setup
    rows = []
    for term in (CENTRE, TOKENS, PARAMETERS):
        reasons = [fit.reason]
        if trend.n_missing:
            reasons.append(f"{trend.n_missing} of {trend.n + trend.n_missing} pairs missing")
        index = (CENTRE, *trend.terms).index(term) if term in (CENTRE, *trend.terms) else None
        if index is None:
            estimate = error = df = math.nan
            reasons.append(f"one number of {term}")
        else:
            estimate, error, df = fit.estimates[index], fit.standard_error(index), fit.df
        half = t_quantile(df) * error
        rows.append({
            "table": trend.groups[0].table, "data": setup.data, "recipe": setup.recipe, "metric": trend.metric.name,
            "optimizer": trend.optimizer, "reference": trend.reference, "term": term, "estimate": estimate,
            "se": error, "df": df, "low": estimate - half, "high": estimate + half,
            "p_value": upper_tail(sign * estimate, error, df), "n": trend.n, "n_missing": trend.n_missing,
            "n_seeds": fit.n_seeds, "reason": "; ".join(filter(None, reasons)),
        })  # fmt: skip
    return rows


def trend_rows(study: StudyResults) -> Iterator[dict[str, Any]]:
    """Yield the rows of trend.csv; Holm's correction is over the tests of a table on the same term."""
    for name in study.tables:
        of_table = [row for trend in trends(study, name, study.columns(name)) for row in _rows(trend)]
        for term in (CENTRE, TOKENS, PARAMETERS):
            of_term = [row for row in of_table if row["term"] == term]
            for row, p_holm in zip(of_term, holm([row["p_value"] for row in of_term]), strict=True):
                row["p_holm"] = p_holm
        yield from of_table


@dataclass(frozen=True)
class _Line:
    """A metric and a pair of optimizers: the rows of what a doubling of tokens and one of parameters adds."""

    metric: Metric
    optimizer: str
    reference: str
    tokens: Row
    parameters: Row


def _lines(material: Material, table: str) -> list[_Line]:
    study, labels = material.study, material.study.optimizer_labels(table)
    terms = {
        term: [row for row in material.rows(STATISTIC) if (row["table"], row["term"]) == (table, term)]
        for term in (TOKENS, PARAMETERS)
    }
    return [
        _Line(study.layout.metrics[row["metric"]], labels[row["optimizer"]], labels[row["reference"]], row, other)
        for row, other in zip(terms[TOKENS], terms[PARAMETERS], strict=True)
    ]


def _interval(row: Row) -> str:
    if math.isnan(row["estimate"]):
        return MISSING
    return f"{significant(row['estimate'])} [{significant(row['low'])}, {significant(row['high'])}]"


def _answer(line: _Line, where: str) -> str:
    """Return what the test of the loss against tokens says."""
    row, gain = line.tokens, f"gain of {line.optimizer} over {line.reference}"
    if math.isnan(row["p_value"]):
        return f"Whether the {gain} grows with D cannot be told{where}: {row['reason']}."
    word = "grows" if row["p_value"] < ALPHA else "is not shown to grow"
    p = p_value(row["p_value"])
    return (
        f"The {gain} in loss {word} with D{where}: each doubling changes the difference by {_interval(row)} nat/token "
        f"(one-sided p {p if p.startswith('<') else f'= {p}'})."
    )


_COLUMNS: tuple[Column[_Line], ...] = (
    Column("Metric", lambda line: with_arrow(line.metric), "row"),
    Column("Optimizer", lambda line: line.optimizer),
    Column("minus", lambda line: line.reference),
    Column(Markup("doubling of <i>D</i>"), lambda line: _interval(line.tokens), "number"),
    Column(Markup("<i>p</i>"), lambda line: p_value(line.tokens["p_value"]), "number"),
    Column(Markup("<i>p</i>, Holm"), lambda line: p_value(line.tokens["p_holm"]), "number"),
    Column(Markup("doubling of <i>N</i>"), lambda line: _interval(line.parameters), "number"),
    Column("From", lambda line: f"{plural(line.tokens['n'], 'pair')}, {plural(line.tokens['n_seeds'], 'seed')}"),
    Column("Remark", lambda line: line.tokens["reason"], "wrap"),
)


def _blocks(material: Material) -> Iterator[Block]:
    shown = {name: lines for name in material.study.tables if (lines := _lines(material, name))}
    if not shown:
        return
    yield Text(
        Markup(
            "The paper says that the gain of Coupled Adam in loss grows with <i>D</i>. This section fits a line within "
            "each seed to all sizes of a table: the difference of two optimizers, paired by seed, against log <i>D</i> "
            "and log <i>N</i>. It tests the mean of the lines by Student's <i>t</i> over the seeds, so three seeds "
            "find only clear growth. The test is one-sided: that the difference moves in favour of the optimizer. "
            'Unless a stated plan has it, read it as exploratory. All lines: <a href="../trend.csv">trend.csv</a>, '
            'where they cross 0 in <a href="../crossings.csv">crossings.csv</a>.'
        )
    )
    for number, (name, lines) in enumerate(shown.items()):
        title = material.study.tables[name].title
        families = {(line.tokens["data"], line.tokens["recipe"]) for line in lines}
        yield Heading(title)
        for line in lines:
            if line.metric.name == LOSS:
                where = f" on {line.tokens['data']} ({line.tokens['recipe']})" if len(families) > 1 else ""
                yield Text(_answer(line, where))
        if sentences := crossing_sentences(material, name):
            yield Items(sentences)
        if number == 0:
            yield Figures(["trend"])
        caption = "What each doubling adds to the difference, with its 95 % interval"
        yield Fold(
            plural(len(lines), "line"), [Grid(f"Trends of {title}", _COLUMNS, lines, caption=caption, tall=True)]
        )


STATISTIC = Statistic(
    file="trend.csv",
    columns={
        "table": PLACE["table"],
        "data": PLACE["data"],
        "recipe": PLACE["recipe"],
        "metric": Field(str, "name of the metric"),
        "optimizer": Field(str, "key of the optimizer"),
        "reference": Field(str, "key of the optimizer that it is compared with"),
        "term": Field(str, "centre, or what is doubled: tokens or parameters"),
        "estimate": Field(float, "the difference at the centre, or what a doubling adds to it", "the metric's"),
        "se": Field(float, "its standard error", "the metric's"),
        "df": Field(float, "its degrees of freedom"),
        "low": Field(float, "lower end of its 95 % interval", "the metric's"),
        "high": Field(float, "upper end of its 95 % interval", "the metric's"),
        "p_value": Field(float, "one-sided p, for the optimizer"),
        "p_holm": Field(float, "p after Holm's correction over the table's tests of the term"),
        "n": Field(int, "pairs of runs"),
        "n_missing": Field(int, "pairs without both values"),
        "n_seeds": Field(int, "seeds with a line"),
        "reason": Field(str, "why a number is missing"),
    },
    key=("table", "data", "recipe", "metric", "optimizer", "reference", "term"),
    rows=lambda material: trend_rows(material.study),
    section=Section("trend", "Does the gain grow?", _blocks),
)
