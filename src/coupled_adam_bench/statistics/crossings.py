"""At how many tokens the fitted difference of two optimizers is 0: ``crossings.csv``."""

import math
from collections.abc import Iterator
from typing import Any

from coupled_adam_bench.results.groups import Setup
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import PLACE, Field, Material, Row, Statistic
from coupled_adam_bench.statistics.regression import TOKENS, Trend, t_quantile, trends
from coupled_adam_bench.statistics.scores import LOSS
from coupled_adam_bench.study.cells import readable_count

NO_CROSSING = "no crossing in the range"
CROSSED = {LOSS: "losses", "r_bar": "word similarities"}
"""The metrics of which the report says where two optimizers cross, and how it names their values."""


def crossing(trend: Trend, n_params: int) -> tuple[float, float, float, str]:
    """Return the tokens at which the fitted difference is 0, the ends of the 95 % interval, and a reason for NaN.

    The interval is Fieller's (1954): all D at which the interval of the fitted difference holds 0. It may reach beyond
    the study's numbers of tokens; a crossing itself is given only between them.
    """
    nan = math.nan
    if trend.fit.reason or TOKENS not in trend.terms:
        return nan, nan, nan, trend.fit.reason or "one number of tokens"
    value, slope, variance, slope_variance, covariance = trend.line(n_params)
    tokens = [group.n_tokens for group in trend.groups]
    place = -value / slope if slope else nan
    if not math.log2(min(tokens)) <= place <= math.log2(max(tokens)):
        return nan, nan, nan, NO_CROSSING
    squared = t_quantile(trend.fit.df) ** 2
    # (value + slope x)^2 <= t^2 variance(x), a quadratic in x; it opens upwards if the slope differs from 0.
    a = slope**2 - squared * slope_variance
    if a <= 0:
        return 2**place, nan, nan, "the slope does not differ from 0, so the interval has no end"
    b, c = value * slope - squared * covariance, value**2 - squared * variance
    root = math.sqrt(max(b * b - a * c, 0.0))
    return 2**place, _tokens((-b - root) / a), _tokens((-b + root) / a), ""


def _tokens(log2: float) -> float:
    return 2.0**log2 if log2 < 1023 else math.inf


def crossing_rows(study: StudyResults) -> Iterator[dict[str, Any]]:
    """Yield the rows of crossings.csv: a table's fitted lines, each at every size."""
    for name in study.tables:
        for trend in trends(study, name, study.columns(name)):
            setups: dict[Setup, None] = dict.fromkeys(group.setup for group in trend.groups)
            for setup in setups:
                tokens, low, high, reason = crossing(trend, setup.n_params)
                yield {
                    "table": name, **vars(setup), "metric": trend.metric.name, "optimizer": trend.optimizer,
                    "reference": trend.reference, "tokens": tokens, "low": low, "high": high, "reason": reason,
                }  # fmt: skip


def crossing_sentences(material: Material, table: str) -> list[str]:
    """Return where the fitted values of ``CROSSED`` cross in a table; where those of a pair do not is one sentence."""
    rows = [row for row in material.rows(STATISTIC) if row["table"] == table]
    names, study = ("metric", "optimizer", "reference"), material.study
    labels = study.optimizer_labels(table)
    sentences = []
    for metric, values in CROSSED.items():
        pairs = dict.fromkeys(tuple(row[name] for name in names) for row in rows if row["metric"] == metric)
        for pair in pairs:
            of_pair = [row for row in rows if tuple(row[name] for name in names) == pair]
            fitted = f"The fitted {values} of {labels[pair[1]]} and {labels[pair[2]]}"
            sentences += [f"{fitted} {_crossed(study, row)}." for row in of_pair if not math.isnan(row["tokens"])]
            if apart := [_size(study, row) for row in of_pair if row["reason"] == NO_CROSSING]:
                sentences.append(f"{fitted} do not cross within the numbers of tokens of N = {', '.join(apart)}.")
    return sentences


def _size(study: StudyResults, row: Row) -> str:
    return study.layout.labels[Setup(row["n_params"], row["model"], row["data"], row["recipe"])]


def _crossed(study: StudyResults, row: Row) -> str:
    interval = f"95 % interval {_count(row['low'])} to {_count(row['high'])}"
    return f"cross at D = {_count(row['tokens'])} for N = {_size(study, row)} ({row['reason'] or interval})"


def _count(tokens: float) -> str:
    return readable_count(round(tokens)) if tokens < 1e18 else "more than 10^18"


STATISTIC = Statistic(
    file="crossings.csv",
    columns={
        "table": PLACE["table"],
        "n_params": PLACE["n_params"],
        "model": PLACE["model"],
        "data": PLACE["data"],
        "recipe": PLACE["recipe"],
        "metric": Field(str, "name of the metric"),
        "optimizer": Field(str, "key of the optimizer"),
        "reference": Field(str, "key of the optimizer that it is compared with"),
        "tokens": Field(float, "where the fitted difference is 0"),
        "low": Field(float, "lower end of Fieller's 95 % interval"),
        "high": Field(float, "its upper end"),
        "reason": Field(str, "why a number is missing"),
    },
    key=("table", "n_params", "model", "data", "recipe", "metric", "optimizer", "reference"),
    rows=lambda material: crossing_rows(material.study),
)
