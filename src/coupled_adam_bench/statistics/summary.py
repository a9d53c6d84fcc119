"""``summary.csv``: how often an optimizer is better than the first one, over all groups of a table.

The probability of improvement is that of Agarwal et al. (2021), arXiv:2108.13264. Their tasks are our groups, their
runs our seeds. Resamples are drawn within each group (stratified bootstrap), and intervals are percentiles.

G: groups    S: seeds of a group    B: resamples
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import PLACE, Field, Statistic
from coupled_adam_bench.statistics.student import LEVEL
from coupled_adam_bench.study.catalog.metrics import Metric

Floats = NDArray[np.float64]
Strata = Sequence[Floats]
"""The values of each group, of shape (S,)."""
Blocks = Sequence[tuple[Floats, Floats]]
"""For groups with as many seeds each, the values of two optimizers, of shape (G, S) or (B, G, S)."""
N_RESAMPLES = 2_000
RANDOM_SEED = 0
# Resamples are drawn so many values at a time, to bound the memory.
_VALUES_AT_ONCE = 2**20


def improvement(first: Floats, second: Floats, higher_is_better: bool) -> Floats:
    """Return how often a value of ``first`` is better than one of ``second`` along the last axis; a tie is a half.

    It is Mann and Whitney's U over the number of pairs (Sec. 4.3, App. A.3).
    """
    sign = np.sign(first[..., :, None] - second[..., None, :]) * (1 if higher_is_better else -1)
    return np.asarray((sign.mean(axis=(-2, -1)) + 1) / 2)


def _blocks(firsts: Strata, seconds: Strata) -> Blocks:
    """Return the values of both optimizers, of shape (G, S), with the groups of as many seeds together."""
    alike: dict[tuple[int, int], list[tuple[Floats, Floats]]] = {}
    for first, second in zip(firsts, seconds, strict=True):
        alike.setdefault((len(first), len(second)), []).append((first, second))
    return [(np.array([a for a, _ in members]), np.array([b for _, b in members])) for members in alike.values()]


def _resampled(values_GS: Floats, n_resamples: int, rng: np.random.Generator) -> Floats:
    """Return resamples of the seeds of each group, of shape (B, G, S)."""
    places = rng.integers(values_GS.shape[1], size=(n_resamples, *values_GS.shape))
    return np.take_along_axis(values_GS[None], places, axis=2)


def improvement_over(blocks: Blocks, higher_is_better: bool) -> Floats:
    """Return the mean over groups of the probability of improvement of the first optimizer over the second."""
    each = [improvement(first, second, higher_is_better) for first, second in blocks]
    return np.asarray(np.concatenate(each, axis=-1).mean(axis=-1))


def _interval(blocks: Blocks, higher_is_better: bool) -> tuple[float, float]:
    """Return the percentile interval of the probability of improvement."""
    rng = np.random.default_rng(RANDOM_SEED)
    at_once = max(1, _VALUES_AT_ONCE // sum(values.size for block in blocks for values in block))
    found = []
    for done in range(0, N_RESAMPLES, at_once):
        n = min(at_once, N_RESAMPLES - done)
        resampled = [(_resampled(first, n, rng), _resampled(second, n, rng)) for first, second in blocks]
        found.append(improvement_over(resampled, higher_is_better))
    low, high = np.quantile(np.concatenate(found), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _row(samples: Mapping[str, Strata], higher_is_better: bool) -> dict[str, Any]:
    """Return the numbers of two optimizers; NaN with a reason where values are missing or cannot be resampled."""
    low = high = value = math.nan
    missing = [
        f"{name}: {count} of {sum(map(len, strata))} values missing"
        for name, strata in samples.items()
        if (count := sum(int((~np.isfinite(group)).sum()) for group in strata))
    ]
    reason = "; ".join(missing)
    if not missing:
        blocks = _blocks(*samples.values())
        value = float(improvement_over(blocks, higher_is_better))
        if min(len(group) for strata in samples.values() for group in strata) < 2:
            reason = "no interval: a group has one run"
        else:
            low, high = _interval(blocks, higher_is_better)
    n_values = sum(len(group) for strata in samples.values() for group in strata)
    return {"value": value, "low": low, "high": high, "n_values": n_values, "reason": reason}


def _metric_rows(study: StudyResults, table: str, metric: Metric) -> Iterator[dict[str, Any]]:
    """Yield the rows of a metric: each other optimizer against the first of the table."""
    found: dict[str, dict[int, Floats]] = {}
    for number, group in enumerate(study.groups[table]):
        for key, values in study.samples(group, metric).items():
            found.setdefault(key, {})[number] = np.array(values)
    reference, *others = found
    for key in others:
        shared = [number for number in found[key] if number in found[reference]]
        if shared:
            samples = {name: [found[name][number] for number in shared] for name in (key, reference)}
            place = {"table": table, "metric": metric.name, "optimizer": key, "reference": reference}
            yield place | {"n_groups": len(shared)} | _row(samples, metric.higher_is_better)


def summary_rows(study: StudyResults) -> Iterator[dict[str, Any]]:
    """Yield the rows of summary.csv, of every table and metric."""
    for name, groups in study.groups.items():
        for metric in study.columns(name) if groups else ():
            yield from _metric_rows(study, name, metric)


STATISTIC = Statistic(
    file="summary.csv",
    columns={
        "table": PLACE["table"],
        "metric": Field(str, "name of the metric"),
        "optimizer": Field(str, "key of the optimizer"),
        "reference": Field(str, "key of the optimizer that it is compared with"),
        "n_groups": Field(int, "groups that have both"),
        "n_values": Field(int, "values of both optimizers"),
        "value": Field(float, "probability of improvement of the optimizer over the reference"),
        "low": Field(float, "lower end of its 95 % interval"),
        "high": Field(float, "its upper end"),
        "reason": Field(str, "why a number is missing"),
    },
    key=("table", "metric", "optimizer", "reference"),
    rows=lambda material: summary_rows(material.study),
)
