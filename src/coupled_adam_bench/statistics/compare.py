"""``results.csv`` to ``tests.csv``: who is better, in which metric, and what is printed bold.

In every group (table, n_params, n_tokens) and metric the optimizer with the best mean is compared with each of the
others: no other one can be significantly better than all. Values are compared unrounded. The rules:

``t-test`` (Table 1 and Table 7): bold if significantly better than every other value of its column [P].
``better`` (Table 2, single runs): bold if better; no test [P].

The direction of a test follows the data, so of two equal optimizers one is bold in 10 % of the cases, not in 5 %: the
paper's rule, kept.

A missing run is never averaged away: an optimizer with some of its values missing has no mean and keeps the others
from being bold, since nothing shows that they are better; one without any value is no value of the column.
"""

import math
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.plan import Plan
from coupled_adam_bench.results.collect import read_results
from coupled_adam_bench.results.groups import UNTESTED, Group, Values, table_groups, table_values
from coupled_adam_bench.results.schema import METRICS, Metric
from coupled_adam_bench.results.tidy import read_csv, typed_frame, write_csv
from coupled_adam_bench.statistics.corrections import holm
from coupled_adam_bench.statistics.t_test import summarize, t_test

if TYPE_CHECKING:
    from pandas import DataFrame

TEST_COLUMNS: dict[str, type] = {
    "table": str, "n_params": int, "n_tokens": int, "metric": str, "optimizer": str, "reference": str,
    "n": int, "n_reference": int, "mean": float, "mean_reference": float, "sd": float, "sd_reference": float,
    "difference": float, "t": float, "df": float, "p_value": float, "significant": bool, "p_holm": float,
    "hedges_g": float, "p_welch": float, "rule": str, "reason": str,
}  # fmt: skip
_KEY = ("table", "n_params", "n_tokens", "metric", "optimizer", "reference")


def _compare_group(group: Group, values: Values, metric: Metric) -> list[dict[str, Any]]:
    """Return the rows of one group and metric: the best mean against each other optimizer."""
    samples = group.samples(values, metric)
    sign = 1 if metric.higher_is_better else -1
    means = {key: sign * summarize(sample).mean for key, sample in samples.items()}
    best = max(samples, key=lambda key: -math.inf if math.isnan(means[key]) else means[key])
    rows = []
    for reference in samples:
        if reference == best:
            continue
        test = t_test(samples[best], samples[reference], metric.higher_is_better, (best, reference))
        row = {
            "table": group.table, "n_params": group.n_params, "n_tokens": group.n_tokens, "metric": metric.name,
            "optimizer": best, "reference": reference, "n": test.first.n, "n_reference": test.second.n,
            "mean": test.first.mean, "mean_reference": test.second.mean,
            "sd": test.first.sd, "sd_reference": test.second.sd, "difference": test.difference,
        }  # fmt: skip
        if group.table == UNTESTED:
            missing = [key for key in (best, reference) if math.isnan(means[key])]
            row |= dict.fromkeys(("t", "df", "p_value", "hedges_g", "p_welch"), math.nan)
            row |= {"significant": False, "rule": "better", "reason": "; ".join(f"{key}: missing" for key in missing)}
        else:
            row |= {name: getattr(test, name) for name in ("t", "df", "p_value", "significant", "hedges_g", "p_welch")}
            row |= {"rule": "t-test", "reason": test.reason}
        rows.append(row)
    return rows


def compare(plan: Plan, results: "DataFrame") -> "DataFrame":
    """Return all comparisons of a study's tables, with the columns ``TEST_COLUMNS``; Holm's correction is per table."""
    values = table_values(plan, results)
    rows: list[dict[str, Any]] = []
    for groups in table_groups(plan).values():
        pairs = [(group, metric) for group in groups for metric in METRICS.values()]
        table = [row for group, metric in pairs for row in _compare_group(group, values, metric)]
        adjusted = holm([row["p_value"] for row in table])
        rows += [row | {"p_holm": p_holm} for row, p_holm in zip(table, adjusted, strict=True)]
    return typed_frame(rows, TEST_COLUMNS)


def write_tests(plan: Plan, results_csv: Path, out: Path) -> None:
    """Write ``tests.csv`` from ``results.csv``."""
    write_csv(compare(plan, read_results(results_csv)), out)


def read_tests(path: Path) -> "DataFrame":
    """Read ``tests.csv``; ``ValueError`` for a wrong column, a value of the wrong type or a duplicate row."""
    return read_csv(path, TEST_COLUMNS, _KEY)


def winners(tests: "DataFrame") -> dict[tuple[str, int, int, str], str | None]:
    """Return the optimizer to print bold, or None, by table, n_params, n_tokens and metric."""
    columns: dict[tuple[str, int, int, str], list[dict[Hashable, Any]]] = {}
    for row in tests.to_dict("records"):
        columns.setdefault((row["table"], row["n_params"], row["n_tokens"], row["metric"]), []).append(row)
    decided = {}
    for key, rows in columns.items():
        rivals = [row for row in rows if row["n_reference"] > 0]
        beaten = [row["significant"] if row["rule"] == "t-test" else abs(row["difference"]) > 0 for row in rivals]
        decided[key] = rivals[0]["optimizer"] if rivals and all(beaten) else None
    return decided
