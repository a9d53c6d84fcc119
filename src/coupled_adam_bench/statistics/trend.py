"""How the difference between two optimizers grows with tokens and parameters: ``trend.csv``.

The paper says that the gain of Coupled Adam in loss grows with D [P]. The model of a table, a
metric and two optimizers, over all seeds s, tokens D and parameters N that have both values, is a
line for each seed: ``difference = a_s + b_s log2 D + c_s log2 N + noise``. The mean b is what a
doubling of D adds; it has a one-sided t-test over the seeds.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from coupled_adam_bench.page.blocks import (
    Block,
    Figures,
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
from coupled_adam_bench.page.formats import MISSING, p_value, plural, significant
from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.rounding import rounding_of
from coupled_adam_bench.results.study_results import StudyResults, paired_differences, rivals
from coupled_adam_bench.statistics.declared import Material, Row, Section, Statistic
from coupled_adam_bench.statistics.scores import LOSS
from coupled_adam_bench.statistics.student import ALPHA, holm, one_sided_p, t_quantile, t_ratio
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.cells import readable_count

Floats = NDArray[np.float64]
NO_CROSSING = "no crossing in the range"
CENTRE, TOKENS, PARAMETERS = "centre", "tokens", "parameters"
"""Terms: the difference at the mean log D and log N, and what each doubling of tokens or of
parameters adds to it."""
CROSSING = "tokens at 0, N = "
"""A term of each size, whose number of parameters follows: at how many tokens the fitted difference
is 0."""


@dataclass(frozen=True)
class Fit:
    """The mean of the lines of ``n_seeds`` seeds: its first estimate is the value at the centre,
    the others are slopes.

    ``covariance`` is that of the estimates, with ``df`` degrees of freedom. ``centre`` are the
    means of the covariates. Without a fit, ``reason`` says why, and all numbers but ``n_seeds`` are
    NaN.
    """

    estimates: Floats
    covariance: Floats
    df: float
    centre: Floats
    n_seeds: int
    reason: str

    def standard_error(self, index: int) -> float:
        """Return the standard error of an estimate."""
        return math.sqrt(self.covariance[index][index])


def upper_tail(estimate: float, standard_error: float, df: float) -> float:
    """Return the one-sided p-value of an estimate above 0; without any error it is 0, 1 or, for an
    estimate of 0, 1."""
    return (
        math.nan
        if math.isnan(estimate)
        else one_sided_p(t_ratio(estimate, standard_error), df, higher=True)
    )


def _no_fit(n_slopes: int, n_seeds: int, reason: str) -> Fit:
    nans = np.full(1 + n_slopes, math.nan)
    return Fit(nans, np.tile(nans, (len(nans), 1)), math.nan, nans[1:], n_seeds, reason)


def fit_line(
    values: Sequence[float], covariates: Sequence[Sequence[float]], seeds: Sequence[int]
) -> Fit:
    """Fit ``values`` of shape (n) by ``covariates`` of shape (n, slopes): a line within each seed,
    by least squares.

    The spread is that of the seeds' lines, so it holds whatever the values of a seed have in
    common: an effect, a slope or the trunk of their schedule. Intervals are exact for normal noise
    if all seeds have the same covariates. A seed whose values do not determine a line is left out.
    """
    y, slopes = (
        np.asarray(values, dtype=float),
        np.asarray(covariates, dtype=float).reshape(len(values), -1),
    )
    centre = slopes.mean(axis=0)
    design = np.column_stack([np.ones(len(y)), slopes - centre])
    n_slopes = slopes.shape[1]
    if np.linalg.matrix_rank(design) <= n_slopes:
        return _no_fit(n_slopes, 0, "tokens and parameters vary together only")
    of_seeds = [np.asarray(seeds) == seed for seed in dict.fromkeys(seeds)]
    fits = [np.linalg.lstsq(design[of_seed], y[of_seed], rcond=None) for of_seed in of_seeds]
    lines = np.array([line for line, _, rank, _ in fits if rank > n_slopes])
    lines[np.abs(lines) <= rounding_of(*y)] = 0.0  # equal differences have no slope
    if len(lines) < 2:
        return _no_fit(
            n_slopes,
            len(lines),
            f"{len(lines)} seed(s) with places enough for a line, their spread needs 2",
        )
    covariance = np.atleast_2d(np.cov(lines, rowvar=False)) / len(lines)
    return Fit(lines.mean(axis=0), covariance, len(lines) - 1.0, centre, len(lines), "")


@dataclass(frozen=True)
class Trend:
    """The fitted line of a table's groups that have the same data and recipe."""

    groups: tuple[Group, ...]
    metric: Metric
    optimizer: str
    reference: str
    terms: tuple[str, ...]
    """What the line depends on: ``TOKENS``, ``PARAMETERS``, both, or nothing."""
    fit: Fit
    n: int
    n_missing: int

    def _weights(self, n_params: float, n_tokens: float) -> Floats:
        at = {TOKENS: math.log2(n_tokens), PARAMETERS: math.log2(n_params)}
        return np.array([1.0, *(np.array([at[term] for term in self.terms]) - self.fit.centre)])

    def predicted(self, n_params: float, n_tokens: float) -> tuple[float, float]:
        """Return the fitted difference and half the width of its 95 % interval."""
        weights = self._weights(n_params, n_tokens)
        error = math.sqrt(max(float(weights @ self.fit.covariance @ weights), 0.0))
        return float(weights @ self.fit.estimates), t_quantile(self.fit.df) * error

    def crossing(self, n_params: int) -> tuple[float, float, float, str]:
        """Return the tokens at which the fitted difference is 0, the ends of the 95 % interval, and
        a reason for NaN.

        The interval is Fieller's (1954): all D at which the interval of the fitted difference holds
        0. It may reach beyond the study's numbers of tokens; a crossing itself is given only
        between them.
        """
        nothing = (math.nan, math.nan, math.nan)
        if self.fit.reason or TOKENS not in self.terms:
            return *nothing, self.fit.reason or "one number of tokens"
        # The difference at log2 D = x is that at one token and x times the slope.
        at_one = self._weights(n_params, 1)
        slope = self._weights(n_params, 2) - at_one
        value_slope = np.array([at_one, slope])
        value, step = map(float, value_slope @ self.fit.estimates)
        tokens = [group.n_tokens for group in self.groups]
        place = -value / step if step else math.nan
        if not math.log2(min(tokens)) <= place <= math.log2(max(tokens)):
            return *nothing, NO_CROSSING
        # (value + step x)^2 <= t^2 variance(x), a quadratic in x; it opens upwards if the slope
        # differs from 0.
        variances = t_quantile(self.fit.df) ** 2 * value_slope @ self.fit.covariance @ value_slope.T
        a, b, c = (
            step**2 - variances[1, 1],
            value * step - variances[0, 1],
            value**2 - variances[0, 0],
        )
        if a <= 0:
            return (
                2.0**place,
                *nothing[1:],
                "the slope does not differ from 0, so the interval has no end",
            )
        root = math.sqrt(max(b * b - a * c, 0.0))
        low, high = (2.0 ** min((-b + sign * root) / a, 1023) for sign in (-1, 1))
        return 2.0**place, low, high, ""


def trends(study: StudyResults, table: str, metrics: Sequence[Metric]) -> list[Trend]:
    """Return the fitted lines of a table that has several numbers of tokens or sizes, by data,
    recipe and pair."""
    families: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in study.groups[table]:
        families[group.setup.data, group.setup.recipe].append(group)
    found = []
    for groups in families.values():
        pairs = Counter(pair for group in groups for pair in rivals(group))
        several = [pair for pair, n_groups in pairs.items() if n_groups > 1]
        found += [trend_of(study, groups, metric, *pair) for metric in metrics for pair in several]
    return found


def trend_of(
    study: StudyResults,
    groups: Sequence[Group],
    metric: Metric,
    optimizer: str,
    reference: str,
    among: Sequence[int] | None = None,
) -> Trend:
    """Return the line through groups of the same data and recipe, over all seeds or those ``among``
    these."""
    shared = [group for group in groups if {optimizer, reference} <= group.cells.keys()]
    logs = [
        {TOKENS: math.log2(group.n_tokens), PARAMETERS: math.log2(group.setup.n_params)}
        for group in shared
    ]
    # What is the same in all groups has no slope.
    terms: tuple[str, ...] = ()
    for each in (TOKENS, PARAMETERS):
        if len({of_group[each] for of_group in logs}) > 1:
            terms += (each,)
    points: list[tuple[float, list[float], int]] = []
    n_missing = 0
    for group, of_group in zip(shared, logs, strict=True):
        found = paired_differences(study, group, metric, optimizer, reference)
        for seed in found if among is None else among:
            difference = found.get(seed, math.nan)
            if math.isfinite(difference):
                points.append((difference, [of_group[term] for term in terms], seed))
            else:  # a plan's test needs all of its pairs, so it has to know
                n_missing += 1
    fit = (
        fit_line(*zip(*points, strict=True))
        if points
        else _no_fit(len(terms), 0, "no pair has both values")
    )
    return Trend(tuple(shared), metric, optimizer, reference, terms, fit, len(points), n_missing)


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
        half = t_quantile(df) * error
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
                "low": estimate - half,
                "high": estimate + half,
                "p_value": upper_tail(sign * estimate, error, df),
                "n": trend.n,
                "n_missing": trend.n_missing,
                "n_seeds": fit.n_seeds,
                "reason": "; ".join(filter(None, reasons)),
            }
        )
    # A crossing is a number of tokens and no slope: it has an interval, but no test.
    for n_params in sorted({group.setup.n_params for group in trend.groups}):
        tokens, low, high, reason = trend.crossing(n_params)
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
    for name in study.tables:
        of_table = [
            row for trend in trends(study, name, study.columns(name)) for row in _rows(trend)
        ]
        for term in (CENTRE, TOKENS, PARAMETERS):
            of_term = [row for row in of_table if row["term"] == term]
            for row, p_holm in zip(of_term, holm([row["p_value"] for row in of_term]), strict=True):
                row["p_holm"] = p_holm
        yield from of_table


def _interval(row: Row) -> str:
    if math.isnan(row["estimate"]):
        return MISSING
    return f"{significant(row['estimate'])} [{significant(row['low'])}, {significant(row['high'])}]"


def _answer(row: Row, gain: str, where: str) -> str:
    """Return what the test of the loss against tokens says."""
    if math.isnan(row["p_value"]):
        return f"Whether the {gain} grows with D cannot be told{where}: {row['reason']}."
    word = "grows" if row["p_value"] < ALPHA else "is not shown to grow"
    p = p_value(row["p_value"])
    return (
        f"The {gain} in loss {word} with D{where}: each doubling changes the difference by"
        f" {_interval(row)} nat/token (one-sided p {p if p.startswith('<') else f'= {p}'})."
    )


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
        if row["metric"] == LOSS and row["term"].startswith(CROSSING):
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
    (Markup("<i>p</i>, Holm"), "number"),
    (Markup("doubling of <i>N</i>"), "number"),
    ("From", "text"),
    ("Remark", "wrap"),
)


def _blocks(material: Material) -> Iterator[Block]:
    study, rows = material.study, material.rows(STATISTIC)
    if not rows:
        return
    yield Text(
        Markup(
            "The paper says that the gain of Coupled Adam in loss grows with <i>D</i>. This section"
            " fits a line within each seed to all sizes of a table: the difference of two"
            " optimizers, paired by seed, against log <i>D</i> and log <i>N</i>. It tests the mean"
            " of the lines by Student's <i>t</i> over the seeds, so three seeds find only clear"
            " growth. The test is one-sided: that the difference moves in favour of the optimizer."
            " Unless a stated plan has it, read it as exploratory. All lines: <a"
            ' href="../trend.csv">trend.csv</a>.'
        )
    )
    yield Figures(["trend"])
    for name, table in study.tables.items():
        of_table = [row for row in rows if row["table"] == name]
        tokens = [row for row in of_table if row["term"] == TOKENS]
        parameters = [row for row in of_table if row["term"] == PARAMETERS]
        if not tokens:
            continue
        labels, lines = study.optimizer_labels(name), []
        # A sentence names data and recipe only where the table has lines of several.
        several = len({(row["data"], row["recipe"]) for row in tokens}) > 1
        yield Heading(table.title)
        for row, other in zip(tokens, parameters, strict=True):
            metric = study.layout.metrics[row["metric"]]
            pair = (labels[row["optimizer"]], labels[row["reference"]])
            if metric.name == LOSS:
                where = f" on {row['data']} ({row['recipe']})" if several else ""
                yield Text(_answer(row, "gain of {} over {}".format(*pair), where))
            counts = f"{plural(row['n'], 'pair')}, {plural(row['n_seeds'], 'seed')}"
            numbers = (
                _interval(row),
                p_value(row["p_value"]),
                p_value(row["p_holm"]),
                _interval(other),
            )
            lines.append([with_arrow(metric), *pair, *numbers, counts, row["reason"]])
        yield Items(crossing_sentences(of_table, labels), small=True)
        caption = "What each doubling adds to the difference, with its 95 % interval"
        grid = Grid(f"Trends of {table.title}", listed(*_HEADS), lines, caption=caption, tall=True)
        yield Fold(plural(len(lines), "line"), [grid])


STATISTIC = Statistic(
    file="trend.csv",
    columns={
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
    },
    key=("table", "data", "recipe", "metric", "optimizer", "reference", "term"),
    rows=lambda material: trend_rows(material.study),
    section=Section("trend", "Does the gain grow?", _blocks),
)
