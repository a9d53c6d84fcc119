"""``results.csv`` to ``tests.csv``: who is better, in which metric, and what is printed bold.

In every group (table, n_params, n_tokens) and metric the optimizer with the best mean is compared with each of the
others: no other one can be significantly better than all. Values are compared unrounded. The rules:

``t-test`` (comparisons ``pair`` and ``each_other``): bold if significantly better than every other value of its
column, as in the paper's Tables 1 and 7 [P]. ``statistics.bold`` of the study may choose ``paired t-test`` or
``t-test, Holm`` instead.
``better`` (comparison ``single_runs``): bold if better; no test, as in the paper's Table 2 [P].

The direction of a test follows the data, so of two equal optimizers one is bold in 10 % of the cases, not in 5 %: the
paper's rule, kept. All other tests of a comparison stand beside it, for information. The corrections know that the data
choose what is compared: they are over the two-sided tests of all pairs of optimizers in all groups and metrics of a
table, and a row has the corrected p-value of its own pair.

A missing run is never averaged away: an optimizer with some of its values missing has no mean and keeps the others
from being bold, since nothing shows that they are better; one without any value is no value of the column.
"""

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

from pandas import DataFrame

from coupled_adam_bench.results.comparisons import BETTER, DECIDING, RULES, TEST_COLUMNS
from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.results.tidy import typed_frame
from coupled_adam_bench.statistics.corrections import benjamini_hochberg, holm
from coupled_adam_bench.statistics.declared import PLACE, Field, Material, Statistic, records
from coupled_adam_bench.statistics.paired import paired_test
from coupled_adam_bench.statistics.student import ALPHA, equivalence_p, two_sided_p
from coupled_adam_bench.statistics.t_test import Sample, summarize, t_test
from coupled_adam_bench.study.catalog.metrics import Metric

Row = dict[str, Any]
Side = tuple[str, dict[int, float], Sample]
"""The key of an optimizer, its values by seed, and their summary."""


def compare_all(values: Mapping[str, dict[int, float]], metric: Metric, tested: bool, margin: float) -> list[Row]:
    """Return every pair of optimizers, given by their values, uncorrected; those of the best mean are first."""
    sides = [(key, of_key, summarize(list(of_key.values()))) for key, of_key in values.items()]
    sign = 1 if metric.higher_is_better else -1
    best = max(sides, key=lambda side: -math.inf if math.isnan(side[2].mean) else sign * side[2].mean)
    return [
        {"metric": metric.name}
        | _described(one, other)
        | (_tested(one, other, metric, margin) if tested else _untested(one, other))
        for one, other in combinations([best, *(side for side in sides if side is not best)], 2)
    ]


def _described(first: Side, second: Side) -> Row:
    """Return who is compared, and their means."""
    (optimizer, _, one), (reference, _, other) = first, second
    return {
        "optimizer": optimizer, "reference": reference, "n": one.n, "n_reference": other.n,
        "mean": one.mean, "mean_reference": other.mean, "sd": one.sd, "sd_reference": other.sd,
        "difference": one.mean - other.mean,
    }  # fmt: skip


def _untested(first: Side, second: Side) -> Row:
    """Return the other columns of a comparison without a test: no number of a test."""
    missing = [key for key, _, sample in (first, second) if math.isnan(sample.mean)]
    texts = {"rule": BETTER, "reason": "; ".join(f"{key}: missing" for key in missing), "paired_reason": ""}
    return dict.fromkeys(_NUMBERS, math.nan) | texts | {"n_pairs": len(first[1].keys() & second[1].keys())}


def _tested(first: Side, second: Side, metric: Metric, margin: float) -> Row:
    """Return the other columns of a comparison with tests, but the corrections and what they decide."""
    (optimizer, ours, _), (reference, theirs, _) = first, second
    higher = metric.higher_is_better
    test = t_test(list(ours.values()), list(theirs.values()), higher, (optimizer, reference))
    pairs = paired_test(ours, theirs, higher)
    row = {name: getattr(test, name) for name in ("t", "df", "p_value", "hedges_g", "p_welch", "low", "high", "reason")}
    row |= {f"paired_{name}": getattr(pairs, name) for name in ("difference", "low", "high", "reason")}
    row |= {name: getattr(pairs, name) for name in _OF_PAIRS}
    return row | {
        _UNPAIRED: two_sided_p(test.p_value, test.t, test.df),
        _PAIRED: two_sided_p(pairs.p_value, pairs.t, pairs.n - 1),
        "n_pairs": pairs.n, "t_paired": pairs.t, "p_paired": pairs.p_value, "margin": margin,
        "p_equivalence": equivalence_p(test.difference, test.standard_error, test.df, margin),
        "p_equivalence_paired": equivalence_p(pairs.difference, pairs.standard_error, pairs.n - 1, margin),
    }  # fmt: skip


_UNPAIRED, _PAIRED = "two-sided", "two-sided, paired"
"""The p-values that are corrected, which are no columns of tests.csv."""
_OF_PAIRS = ("p_permutation", "p_permutation_min", "bootstrap_low", "bootstrap_high")
_NUMBERS = (
    "t", "df", "p_value", "hedges_g", "p_welch", "low", "high", "paired_difference", "t_paired", "p_paired",
    "paired_low", "paired_high", *_OF_PAIRS, "margin", "p_equivalence", "p_equivalence_paired", _UNPAIRED, _PAIRED,
)  # fmt: skip


def _is_bold(rows: list[Row]) -> bool:
    """Tell whether the best value is better than all others that are there, by the rule of each comparison."""
    rivals = [row for row in rows if row["n_reference"] > 0]
    beaten = [row["significant"] if row["rule"] in DECIDING else abs(row["difference"]) > 0 for row in rivals]
    return bool(rivals) and all(beaten)


def correct(rows: list[Row]) -> None:
    """Add the corrected p-values to all pairs of a table's groups and metrics."""
    columns = {
        "p_holm": holm([row[_UNPAIRED] for row in rows]),
        "p_bh": benjamini_hochberg([row[_UNPAIRED] for row in rows]),
        "p_paired_holm": holm([row[_PAIRED] for row in rows]),
    }
    for index, row in enumerate(rows):
        row |= {name: values[index] for name, values in columns.items()}


def _decide(rows: list[Row], rule: str) -> None:
    """Add what ``rule`` decides to the comparisons of one best mean."""
    for row in rows:
        row.setdefault("rule", rule)
        row["significant"] = row["rule"] in DECIDING and row[DECIDING[row["rule"]]] < ALPHA
    bold = _is_bold(rows)
    for row in rows:
        row["bold"] = bold


def compare(study: StudyResults) -> DataFrame:
    """Return all comparisons of a study's tables, with the columns ``TEST_COLUMNS``; corrections are per table."""
    settings = study.plan.statistics
    shown: list[Row] = []
    for name, groups in study.groups.items():
        pairs: list[tuple[Group, list[Row]]] = []
        for group in groups:
            for metric in study.columns(name):
                margin = settings.margins.get(metric.name, math.nan)
                values = study.by_seed(group, metric)
                pairs.append((group, compare_all(values, metric, study.tables[name].rules.tested, margin)))
        correct([row for _, rows in pairs for row in rows])
        for group, rows in pairs:
            of_best = [row for row in rows if row["optimizer"] == rows[0]["optimizer"]]
            _decide(of_best, RULES[settings.bold])
            shown += [dict(zip(GROUP_COLUMNS, group.place, strict=True)) | row for row in of_best]
    return typed_frame(shown, TEST_COLUMNS)


def _rows(material: Material) -> list[dict[str, Any]]:
    tests = material.study.tests
    return records(compare(material.study) if tests is None else tests)


_TEXTS = {
    "metric": "name of the metric",
    "optimizer": "key of the optimizer with the best mean",
    "reference": "key of the other one",
    "n": "values of the optimizer",
    "n_reference": "values of the other one",
    "mean": "mean of the optimizer",
    "mean_reference": "mean of the other one",
    "sd": "standard deviation of the optimizer",
    "sd_reference": "standard deviation of the other one",
    "difference": "difference of the means",
    "t": "t of Student's test",
    "df": "its degrees of freedom",
    "p_value": "its one-sided p, in the direction of the data",
    "significant": "whether the rule's p is below 5 %",
    "p_holm": "two-sided p, after Holm's correction",
    "hedges_g": "Hedges's g",
    "p_welch": "one-sided p of Welch's test",
    "rule": "how the comparison was made",
    "reason": "why a number is missing",
    "bold": "whether tables print the value bold",
    "low": "lower end of the difference's 95 % interval",
    "high": "its upper end",
    "p_bh": "two-sided p, after Benjamini-Hochberg's correction",
    "n_pairs": "seeds that both have",
    "paired_difference": "mean difference of the pairs",
    "t_paired": "t of the paired test",
    "p_paired": "its one-sided p",
    "paired_low": "lower end of its 95 % interval",
    "paired_high": "its upper end",
    "p_paired_holm": "its two-sided p, after Holm's correction",
    "p_permutation": "one-sided p of all flips of the pairs' signs",
    "p_permutation_min": "the least that it can be",
    "bootstrap_low": "lower end of the bootstrap's 95 % interval",
    "bootstrap_high": "its upper end",
    "margin": "the study's margin of equivalence",
    "p_equivalence": "p of two one-sided tests within the margin",
    "p_equivalence_paired": "the same over pairs",
    "paired_reason": "why a number over pairs is missing",
}
STATISTIC = Statistic(
    file="tests.csv",
    columns={name: PLACE[name] if name in PLACE else Field(kind, _TEXTS[name]) for name, kind in TEST_COLUMNS.items()},
    key=(*GROUP_COLUMNS, "metric", "optimizer", "reference"),
    rows=_rows,
)
