"""The files of comparisons, ``tests.csv`` and ``paired.csv``: their columns, how they are read."""

from pathlib import Path

from pandas import DataFrame

from coupled_adam_bench.results.groups import GROUP_COLUMNS
from coupled_adam_bench.results.tidy import read_csv
from coupled_adam_bench.study.config.execution import BoldRule

TEST_COLUMNS: dict[str, type] = {
    "table": str, "n_params": int, "n_tokens": int, "metric": str, "optimizer": str, "reference": str,
    "n": int, "n_reference": int, "mean": float, "mean_reference": float, "sd": float, "sd_reference": float,
    "difference": float, "t": float, "df": float, "p_value": float, "significant": bool, "p_holm": float,
    "hedges_g": float, "p_welch": float, "rule": str, "reason": str, "bold": bool, "model": str, "data": str,
    "recipe": str, "low": float, "high": float, "p_bh": float, "n_pairs": int, "paired_difference": float,
    "t_paired": float, "p_paired": float, "paired_low": float, "paired_high": float, "p_paired_holm": float,
    "p_permutation": float, "p_permutation_min": float, "bootstrap_low": float, "bootstrap_high": float,
    "margin": float, "p_equivalence": float, "p_equivalence_paired": float, "paired_reason": str,
}  # fmt: skip
"""Columns of tests.csv; ``bold`` says whether tables print the value of ``optimizer`` bold (docs/statistics.md)."""
T_TEST, PAIRED, HOLM, BETTER = "t-test", "paired t-test", "t-test, Holm", "better"
"""Values of ``rule``: how the comparison was made."""
RULES: dict[BoldRule, str] = {"paper": T_TEST, "paired": PAIRED, "holm": HOLM}
"""The rule of a tested table by the setting ``statistics.bold``."""
DECIDING = {T_TEST: "p_value", PAIRED: "p_paired", HOLM: "p_holm"}
"""The column whose p-value decides, by the rule; without a test there is none."""


def read_tests(path: Path) -> DataFrame:
    """Read ``tests.csv``; ``ValueError`` for a wrong column, a value of the wrong type or a duplicate row."""
    return read_csv(path, TEST_COLUMNS, (*GROUP_COLUMNS, "metric", "optimizer", "reference"))


ALL_SEEDS, AVERAGE = "all", "average"
"""A value of ``seed`` and one of ``task``."""
DOCUMENTS, HELD_OUT = "documents", "held-out documents"
"""Values of ``unit``."""
