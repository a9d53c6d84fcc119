"""The fitted lines of a table, for the plug-ins in ``trend.py`` and ``trend_figure.py``: what they
predict, and where they cross 0."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.study_results import StudyResults, rivals
from coupled_adam_bench.statistics.lines import PARAMETERS, TOKENS, Floats, Trend, trend_of
from coupled_adam_bench.statistics.student import NO_INTERVAL, t_quantile
from coupled_adam_bench.study.catalogue.metrics import Metric

NO_CROSSING = "no crossing in the range"


def trends(study: StudyResults, table: str, metrics: Sequence[Metric]) -> list[Trend]:
    """Return the fitted lines of a table that has several numbers of tokens or sizes, by data,
    recipe and pair."""
    families: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in study.layout.groups[table]:
        families[group.setup.data, group.setup.recipe].append(group)
    found = []
    for groups in families.values():
        pairs = Counter(pair for group in groups for pair in rivals(group))
        several = [pair for pair, n_groups in pairs.items() if n_groups > 1]
        found += [trend_of(study, groups, metric, *pair) for metric in metrics for pair in several]
    return found


def _weights(trend: Trend, n_params: float, n_tokens: float) -> Floats:
    at = {TOKENS: math.log2(n_tokens), PARAMETERS: math.log2(n_params)}
    return np.array([1.0, *(np.array([at[term] for term in trend.terms]) - trend.fit.centre)])


def predicted(trend: Trend, n_params: float, n_tokens: float) -> tuple[float, float]:
    """Return the fitted difference and half the width of its 95 % interval, NaN without any
    spread."""
    weights = _weights(trend, n_params, n_tokens)
    error = math.sqrt(max(float(weights @ trend.fit.covariance @ weights), 0.0))
    half = t_quantile(trend.fit.df) * error if error > 0 else math.nan
    return float(weights @ trend.fit.estimates), half


def crossing(trend: Trend, n_params: int) -> tuple[float, float, float, str]:
    """Return the tokens at which the fitted difference is 0, the ends of the 95 % interval, and
    a reason for NaN.

    The interval is Fieller's (1954): all D at which the interval of the fitted difference holds
    0. It may reach beyond the study's numbers of tokens; a crossing itself is given only
    between them.
    """
    nothing = (math.nan, math.nan, math.nan)
    if trend.fit.reason or TOKENS not in trend.terms:
        return *nothing, trend.fit.reason or "one number of tokens"
    # The difference at log2 D = x is that at one token and x times the slope.
    at_one = _weights(trend, n_params, 1)
    slope = _weights(trend, n_params, 2) - at_one
    value_slope = np.array([at_one, slope])
    value, step = map(float, value_slope @ trend.fit.estimates)
    tokens = [group.n_tokens for group in trend.groups]
    place = -value / step if step else math.nan
    if not math.log2(min(tokens)) <= place <= math.log2(max(tokens)):
        return *nothing, NO_CROSSING
    # (value + step x)^2 <= t^2 variance(x), a quadratic in x; it opens upwards if the slope
    # differs from 0.
    variances = t_quantile(trend.fit.df) ** 2 * value_slope @ trend.fit.covariance @ value_slope.T
    a, b, c = (
        step**2 - variances[1, 1],
        value * step - variances[0, 1],
        value**2 - variances[0, 0],
    )
    at_place = np.array([1.0, place])
    if not at_place @ variances @ at_place > 0:
        return 2.0**place, *nothing[1:], NO_INTERVAL
    if a <= 0:
        return (
            2.0**place,
            *nothing[1:],
            "the slope does not differ from 0, so the interval has no end",
        )
    root = math.sqrt(max(b * b - a * c, 0.0))
    low, high = (2.0 ** min((-b + sign * root) / a, 1023) for sign in (-1, 1))
    return 2.0**place, low, high, ""
