"""``summary.csv``: each optimizer over all groups of a table, after Agarwal et al. (2021), arXiv:2108.13264.

Their tasks are our groups, their runs our seeds. Resamples are drawn within each group (stratified bootstrap), and
intervals are percentiles.  G: groups    S: seeds of a group    B: resamples
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.results.comparisons import IMPROVEMENT, IQM, SUMMARY_COLUMNS
from coupled_adam_bench.results.study_results import StudyResults, load_results
from coupled_adam_bench.results.tidy import typed_frame, write_csv
from coupled_adam_bench.statistics.student import LEVEL
from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.plan import Plan

if TYPE_CHECKING:
    from pandas import DataFrame

Floats = NDArray[np.float64]
Strata = Sequence[Floats]
"""The values of each group, of shape (S,)."""
Blocks = Sequence[tuple[Floats, ...]]
"""For groups with as many seeds each, the values of each optimizer, of shape (G, S) or (B, G, S)."""
N_RESAMPLES = 2_000
RANDOM_SEED = 0
TRIMMED = 0.25
# Resamples are drawn so many values at a time, to bound the memory.
_VALUES_AT_ONCE = 2**20


def interquartile_mean(values: Floats) -> Floats:
    """Return the mean of the middle half along the last axis: a quarter is cut off at each end (Sec. 4.3)."""
    from scipy.stats import trim_mean

    return np.asarray(trim_mean(values, TRIMMED, axis=-1))


def improvement(first: Floats, second: Floats, higher_is_better: bool) -> Floats:
    """Return how often a value of ``first`` is better than one of ``second`` along the last axis; a tie is a half.

    It is Mann and Whitney's U over the number of pairs (Sec. 4.3, App. A.3).
    """
    sign = np.sign(first[..., :, None] - second[..., None, :]) * (1 if higher_is_better else -1)
    return np.asarray((sign.mean(axis=(-2, -1)) + 1) / 2)


def _blocks(samples: Sequence[Strata]) -> list[tuple[Floats, ...]]:
    """Return the values of each optimizer, of shape (G, S), with the groups of as many seeds together."""
    alike: dict[tuple[int, ...], list[tuple[Floats, ...]]] = {}
    for groups in zip(*samples, strict=True):
        alike.setdefault(tuple(map(len, groups)), []).append(groups)
    return [tuple(map(np.array, zip(*members, strict=True))) for members in alike.values()]


def _resampled(values_GS: Floats, n_resamples: int, rng: np.random.Generator) -> Floats:
    """Return resamples of the seeds of each group, of shape (B, G, S)."""
    places = rng.integers(values_GS.shape[1], size=(n_resamples, *values_GS.shape))
    return np.take_along_axis(values_GS[None], places, axis=2)


def _interval(blocks: Blocks, statistic: Callable[[Blocks], Floats]) -> tuple[float, float]:
    """Return the percentile interval of a statistic of one or two optimizers."""
    rng = np.random.default_rng(RANDOM_SEED)
    at_once = max(1, _VALUES_AT_ONCE // sum(values.size for block in blocks for values in block))
    found = [
        statistic([tuple(_resampled(values, min(at_once, N_RESAMPLES - done), rng) for values in b) for b in blocks])
        for done in range(0, N_RESAMPLES, at_once)
    ]
    low, high = np.quantile(np.concatenate(found), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def iqm_over(blocks: Blocks) -> Floats:
    """Return the interquartile mean of all values of all groups, of shape (B,)."""
    return interquartile_mean(np.concatenate([values.reshape(*values.shape[:-2], -1) for (values,) in blocks], axis=-1))


def improvement_over(blocks: Blocks, higher_is_better: bool) -> Floats:
    """Return the mean over groups of the probability of improvement of the first optimizer over the second."""
    each = [improvement(first, second, higher_is_better) for first, second in blocks]
    return np.asarray(np.concatenate(each, axis=-1).mean(axis=-1))


def _row(samples: Sequence[Strata], statistic: Callable[[Blocks], Floats], names: Sequence[str]) -> dict[str, Any]:
    """Return the columns of one statistic; NaN with a reason where values are missing or cannot be resampled."""
    values = [value for strata in samples for group in strata for value in group]
    low = high = value = math.nan
    reason = ""
    missing = [
        f"{name}: {count} of {sum(map(len, strata))} values missing"
        for name, strata in zip(names, samples, strict=True)
        if (count := sum(int((~np.isfinite(group)).sum()) for group in strata))
    ]
    if missing:
        reason = "; ".join(missing)
    else:
        blocks = _blocks(samples)
        value = float(statistic(blocks))
        if min(len(group) for strata in samples for group in strata) < 2:
            reason = "no interval: a group has one run"
        else:
            low, high = _interval(blocks, statistic)
    return {"value": value, "low": low, "high": high, "n_values": len(values), "reason": reason}


def _metric_rows(study: StudyResults, table: str, metric: Metric) -> Iterator[dict[str, Any]]:
    """Yield the rows of a metric: each optimizer alone, and each other one against the first of the table."""
    found: dict[str, dict[int, Floats]] = {}
    for number, group in enumerate(study.groups[table]):
        for key, values in study.samples(group, metric).items():
            found.setdefault(key, {})[number] = np.array(values)
    place = {"table": table, "metric": metric.name}
    for key, strata in found.items():
        row = _row([list(strata.values())], iqm_over, [key])
        yield place | row | {"optimizer": key, "reference": "", "statistic": IQM, "n_groups": len(strata)}
    reference, *others = found
    for key in others:
        shared = [number for number in found[key] if number in found[reference]]
        if shared:
            samples = [[found[name][number] for number in shared] for name in (key, reference)]
            row = _row(samples, lambda both: improvement_over(both, metric.higher_is_better), [key, reference])
            names = {"optimizer": key, "reference": reference, "statistic": IMPROVEMENT, "n_groups": len(shared)}
            yield place | row | names


def summarize_tables(study: StudyResults) -> "DataFrame":
    """Return the summaries of all tables of a study, with the columns ``SUMMARY_COLUMNS``."""
    tables = [(name, metric) for name, groups in study.groups.items() if groups for metric in study.columns(name)]
    return typed_frame([row for place in tables for row in _metric_rows(study, *place)], SUMMARY_COLUMNS)


def write_summary(plan: Plan, results_csv: Path, out: Path) -> None:
    """Write ``summary.csv`` from ``results.csv``."""
    write_csv(summarize_tables(load_results(plan, results_csv)), out)
