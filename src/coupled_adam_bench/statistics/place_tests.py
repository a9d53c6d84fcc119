"""The tests of a stated hypothesis, place by place, with all stated seeds."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.lines import TOKENS, trend_of, upper_tail
from coupled_adam_bench.statistics.paired import paired_test
from coupled_adam_bench.statistics.student import NO_SPREAD, t_ratio, t_test
from coupled_adam_bench.study.plan.preregistration import Hypothesis


@dataclass(frozen=True)
class PlaceTest:
    """The test of a hypothesis at one place; ``reason`` says why there is none.

    Where values are there and do not vary, only t and the p-value are NaN.
    """

    difference: float = math.nan
    t: float = math.nan
    df: float = math.nan
    p_value: float = math.nan
    reason: str = ""

    @property
    def is_open(self) -> bool:
        """Whether the test waits for values."""
        return math.isnan(self.df)


def place_test(
    study: StudyResults, group: Group, hypothesis: Hypothesis, seeds: Sequence[int]
) -> PlaceTest:
    """Return the stated test with the stated seeds, which must all have both values."""
    metric = study.layout.metrics[hypothesis.metric]
    found, keys = study.at(group, metric), (hypothesis.better, hypothesis.than)
    first = {seed: found[hypothesis.better].scores.get(seed, math.nan) for seed in seeds}
    second = {seed: found[hypothesis.than].scores.get(seed, math.nan) for seed in seeds}
    reasons = []
    for key, sample in zip(keys, (first, second), strict=True):
        if lost := [str(seed) for seed, value in sample.items() if not math.isfinite(value)]:
            reasons.append(f"{key}: no value of seed {', '.join(lost)}")
    if reasons:
        return PlaceTest(reason="; ".join(reasons))
    if hypothesis.test in ("paired", "equivalence"):
        better = metric.larger_wins
        margin = (1 if better else -1) * (hypothesis.margin or 0.0)
        if hypothesis.test == "paired":
            pairs = paired_test(first, _shifted(second, margin), better)
        else:  # each is better than the other would be if it were worse by the margin
            both = (
                paired_test(first, _shifted(second, -margin), better),
                paired_test(second, _shifted(first, -margin), better),
            )
            pairs = max(both, key=lambda one: (math.isnan(one.p_value), one.p_value))
        difference = paired_test(first, second, better).difference
        return PlaceTest(difference, pairs.t, len(seeds) - 1.0, pairs.p_value, pairs.reason)
    test = t_test(list(first.values()), list(second.values()), metric.larger_wins, keys)
    return PlaceTest(test.difference, test.t, test.df, test.p_value, test.reason)


def _shifted(values: Mapping[int, float], by: float) -> dict[int, float]:
    return {seed: value + by for seed, value in values.items()}


def _trend_test(
    study: StudyResults, groups: Sequence[Group], hypothesis: Hypothesis, seeds: Sequence[int]
) -> PlaceTest:
    """Return the test that the gain grows with tokens over places of the same data and recipe."""
    metric = study.layout.metrics[hypothesis.metric]
    trend = trend_of(study, groups, metric, hypothesis.better, hypothesis.than, seeds)
    if TOKENS not in trend.terms:
        return PlaceTest(reason="one number of tokens")
    if trend.n_missing:
        return PlaceTest(reason=f"{trend.n_missing} of {trend.n + trend.n_missing} pairs missing")
    if trend.fit.reason:
        return PlaceTest(reason=trend.fit.reason)
    index = 1 + trend.terms.index(TOKENS)
    slope, error, df = (
        float(trend.fit.estimates[index]),
        trend.fit.standard_error(index),
        trend.fit.df,
    )
    sign = 1 if metric.larger_wins else -1
    p = upper_tail(sign * slope, error, df)
    return PlaceTest(slope, t_ratio(slope, error), df, p, NO_SPREAD if math.isnan(p) else "")


def tests_of(
    study: StudyResults, places: Sequence[Group], hypothesis: Hypothesis, seeds: Sequence[int]
) -> list[PlaceTest]:
    """Return the stated test of a hypothesis at each of its places."""
    if hypothesis.test != "trend":
        return [place_test(study, group, hypothesis, seeds) for group in places]
    families: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in places:
        families[group.setup.data, group.setup.recipe].append(group)
    found = {
        family: _trend_test(study, groups, hypothesis, seeds) for family, groups in families.items()
    }
    return [found[group.setup.data, group.setup.recipe] for group in places]
