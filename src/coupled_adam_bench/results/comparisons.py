"""``tests.csv``: its columns, and how it is read."""

from pathlib import Path
from typing import TYPE_CHECKING

from coupled_adam_bench.results.groups import GROUP_COLUMNS
from coupled_adam_bench.results.tidy import read_csv

if TYPE_CHECKING:
    from pandas import DataFrame

TEST_COLUMNS: dict[str, type] = {
    "table": str, "n_params": int, "n_tokens": int, "metric": str, "optimizer": str, "reference": str,
    "n": int, "n_reference": int, "mean": float, "mean_reference": float, "sd": float, "sd_reference": float,
    "difference": float, "t": float, "df": float, "p_value": float, "significant": bool, "p_holm": float,
    "hedges_g": float, "p_welch": float, "rule": str, "reason": str, "bold": bool, "model": str, "data": str,
    "recipe": str,
}  # fmt: skip
"""Columns of tests.csv; ``bold`` says whether tables print the value of ``optimizer`` bold."""
T_TEST, BETTER = "t-test", "better"
"""Values of ``rule``: how the comparison was made."""


def read_tests(path: Path) -> "DataFrame":
    """Read ``tests.csv``; ``ValueError`` for a wrong column, a value of the wrong type or a duplicate row."""
    return read_csv(path, TEST_COLUMNS, (*GROUP_COLUMNS, "metric", "optimizer", "reference"))
