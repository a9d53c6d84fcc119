"""All pairs of optimizers at one place in one metric, with every test of them, and the corrections
over a table."""

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

from coupled_adam_bench.results.sample import Sample, difference, summarize
from coupled_adam_bench.statistics.paired import paired_test
from coupled_adam_bench.statistics.student import (
    benjamini_hochberg,
    equivalence_p,
    holm,
    t_test,
    two_sided_p,
)
from coupled_adam_bench.study.catalogue.metrics import Metric

BETTER = "better"
"""The value of ``rule`` of a table without a test."""
TWO_SIDED, TWO_SIDED_PAIRED = "two-sided", "two-sided, paired"
"""The p-values that are corrected, which are no columns of tests.csv."""
_OF_PAIRS = ("p_permutation", "p_permutation_min", "bootstrap_low", "bootstrap_high")
Row = dict[str, Any]
Side = tuple[str, dict[int, float], Sample]
"""The key of an optimizer, its values by seed, and their summary."""


def compare_all(
    values: Mapping[str, dict[int, float]], metric: Metric, tested: bool, margin: float
) -> list[Row]:
    """Return every pair of optimizers, given by their values, uncorrected; those of the best mean
    are first."""
    sides = [(key, of_key, summarize(list(of_key.values()))) for key, of_key in values.items()]
    best = _best(sides, metric.larger_wins)
    others = [side for side in sides if side is not best]
    rows = []
    for one, other in combinations([best, *others], 2):
        found = _tested(one, other, metric, margin) if tested else _untested(one, other)
        rows.append({"metric": metric.name} | _described(one, other) | found)
    return rows


def _best(sides: list[Side], larger_wins: bool) -> Side:
    """Return the side with the best mean: of equal ones the first, and the first of all if none has
    a mean."""
    sign = 1 if larger_wins else -1
    there = [side for side in sides if not math.isnan(side[2].mean)] or sides[:1]
    best = there[0]
    for side in there[1:]:
        if sign * difference(side[2].mean, best[2].mean) > 0:
            best = side
    return best


def _described(first: Side, second: Side) -> Row:
    """Return who is compared, and their means."""
    (optimizer, _, one), (reference, _, other) = first, second
    return {
        "optimizer": optimizer,
        "reference": reference,
        "n": one.n,
        "n_reference": other.n,
        "mean": one.mean,
        "mean_reference": other.mean,
        "sd": one.sd,
        "sd_reference": other.sd,
        "difference": difference(one.mean, other.mean),
    }


def _untested(first: Side, second: Side) -> Row:
    """Return the other columns of a comparison without a test: no number of a test, which is NaN in
    the file."""
    missing = [f"{key}: missing" for key, _, sample in (first, second) if math.isnan(sample.mean)]
    texts = {"rule": BETTER, "reason": "; ".join(missing), "paired_reason": ""}
    n_pairs = len(first[1].keys() & second[1].keys())
    return texts | {"n_pairs": n_pairs, TWO_SIDED: math.nan, TWO_SIDED_PAIRED: math.nan}


def _tested(first: Side, second: Side, metric: Metric, margin: float) -> Row:
    """Return the other columns of a comparison with tests, but the corrections and what they
    decide."""
    (optimizer, ours, _), (reference, theirs, _) = first, second
    higher = metric.larger_wins
    test = t_test(list(ours.values()), list(theirs.values()), higher, (optimizer, reference))
    pairs = paired_test(ours, theirs, higher)
    row = {
        name: getattr(test, name)
        for name in ("t", "df", "p_value", "hedges_g", "p_welch", "low", "high", "reason")
    }
    # Both tests have an interval and a reason, so those of the pairs have names of their own.
    row |= {
        f"paired_{name}": getattr(pairs, name) for name in ("difference", "low", "high", "reason")
    }
    row |= {name: getattr(pairs, name) for name in _OF_PAIRS}
    return row | {
        TWO_SIDED: two_sided_p(test.p_value, test.t, test.df),
        TWO_SIDED_PAIRED: two_sided_p(pairs.p_value, pairs.t, pairs.n - 1),
        "n_pairs": pairs.n,
        "t_paired": pairs.t,
        "p_paired": pairs.p_value,
        "margin": margin,
        "p_equivalence": equivalence_p(test.difference, test.standard_error, test.df, margin),
        "p_equivalence_paired": equivalence_p(
            pairs.difference, pairs.standard_error, pairs.n - 1, margin
        ),
    }


def correct(rows: list[Row]) -> None:
    """Add the corrected p-values to all pairs of a table's groups and metrics."""
    unpaired = [row[TWO_SIDED] for row in rows]
    paired = [row[TWO_SIDED_PAIRED] for row in rows]
    columns = {
        "p_holm": holm(unpaired),
        "p_bh": benjamini_hochberg(unpaired),
        "p_paired_holm": holm(paired),
    }
    for index, row in enumerate(rows):
        row |= {name: values[index] for name, values in columns.items()}
