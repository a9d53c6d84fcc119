"""``results.csv`` to ``tests.csv``: who is better, in which metric, and what is printed bold.

In every group (table, n_params, n_tokens) and metric the optimizer with the best mean is compared with each of the
others: no other one can be significantly better than all. Values are compared unrounded. The rules:

``t-test`` (comparisons ``pair`` and ``each_other``): bold if significantly better than every other value of its
column, as in the paper's Tables 1 and 7 [P].
``better`` (comparison ``single_runs``): bold if better; no test, as in the paper's Table 2 [P].

The direction of a test follows the data, so of two equal optimizers one is bold in 10 % of the cases, not in 5 %: the
paper's rule, kept.

A missing run is never averaged away: an optimizer with some of its values missing has no mean and keeps the others
from being bold, since nothing shows that they are better; one without any value is no value of the column.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.catalog.metrics import Metric
from coupled_adam_bench.plan import Plan
from coupled_adam_bench.results.comparisons import BETTER, T_TEST, TEST_COLUMNS
from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group
from coupled_adam_bench.results.study_results import StudyResults, load_results
from coupled_adam_bench.results.tidy import typed_frame, write_csv
from coupled_adam_bench.statistics.corrections import holm
from coupled_adam_bench.statistics.t_test import summarize, t_test

if TYPE_CHECKING:
    from pandas import DataFrame


def _compare_group(study: StudyResults, group: Group, metric: Metric) -> list[dict[str, Any]]:
    """Return the rows of one group and metric: the best mean against each other optimizer."""
    samples = study.samples(group, metric)
    sign = 1 if metric.higher_is_better else -1
    means = {key: sign * summarize(sample).mean for key, sample in samples.items()}
    best = max(samples, key=lambda key: -math.inf if math.isnan(means[key]) else means[key])
    rows: list[dict[str, Any]] = []
    for reference in samples:
        if reference == best:
            continue
        test = t_test(samples[best], samples[reference], metric.higher_is_better, (best, reference))
        row = dict(zip(GROUP_COLUMNS, group.place, strict=True)) | {
            "metric": metric.name, "optimizer": best, "reference": reference,
            "n": test.first.n, "n_reference": test.second.n,
            "mean": test.first.mean, "mean_reference": test.second.mean,
            "sd": test.first.sd, "sd_reference": test.second.sd, "difference": test.difference,
        }  # fmt: skip
        if study.tables[group.table].rules.tested:
            row |= {name: getattr(test, name) for name in ("t", "df", "p_value", "significant", "hedges_g", "p_welch")}
            row |= {"rule": T_TEST, "reason": test.reason}
        else:
            missing = [key for key in (best, reference) if math.isnan(means[key])]
            row |= dict.fromkeys(("t", "df", "p_value", "hedges_g", "p_welch"), math.nan)
            row |= {"significant": False, "rule": BETTER, "reason": "; ".join(f"{key}: missing" for key in missing)}
        rows.append(row)
    bold = _is_bold(rows)
    return [row | {"bold": bold} for row in rows]


def _is_bold(rows: list[dict[str, Any]]) -> bool:
    """Tell whether the best value is better than all others that are there, by the rule of each comparison."""
    rivals = [row for row in rows if row["n_reference"] > 0]
    beaten = [row["significant"] if row["rule"] == T_TEST else abs(row["difference"]) > 0 for row in rivals]
    return bool(rivals) and all(beaten)


def compare(study: StudyResults) -> "DataFrame":
    """Return all comparisons of a study's tables, with the columns ``TEST_COLUMNS``; Holm's correction is per table."""
    rows: list[dict[str, Any]] = []
    for name, groups in study.groups.items():
        pairs = [(group, metric) for group in groups for metric in study.columns(name)]
        table = [row for group, metric in pairs for row in _compare_group(study, group, metric)]
        adjusted = holm([row["p_value"] for row in table])
        rows += [row | {"p_holm": p_holm} for row, p_holm in zip(table, adjusted, strict=True)]
    return typed_frame(rows, TEST_COLUMNS)


def write_tests(plan: Plan, results_csv: Path, out: Path) -> None:
    """Write ``tests.csv`` from ``results.csv``."""
    write_csv(compare(load_results(plan, results_csv)), out)
