"""``target.csv``: when the runs reach a target loss; its columns, and how it is written and read."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.results.comparisons import ALL_SEEDS as ALL_SEEDS
from coupled_adam_bench.results.groups import GROUP_COLUMNS
from coupled_adam_bench.results.tidy import read_csv, typed_frame, write_csv

if TYPE_CHECKING:
    from pandas import DataFrame

TARGET_COLUMNS: dict[str, type] = {
    "table": str, "n_params": int, "n_tokens": int, "optimizer": str, "seed": str, "target": float, "n": int,
    "n_reached": int, "step": float, "tokens": float, "loss": float, "sd": float, "t": float, "df": float,
    "p_value": float, "reason": str, "model": str, "data": str, "recipe": str,
}  # fmt: skip
"""Columns of target.csv; ``seed`` is a seed, or :data:`ALL_SEEDS` for the runs of an optimizer together."""


def write_target_rows(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write ``target.csv`` atomically, in full precision."""
    write_csv(typed_frame(list(rows), TARGET_COLUMNS), path)


def read_target(path: Path) -> "DataFrame":
    """Read ``target.csv``; ``ValueError`` for a wrong column, a value of the wrong type or a duplicate row."""
    return read_csv(path, TARGET_COLUMNS, (*GROUP_COLUMNS, "optimizer", "seed"))
