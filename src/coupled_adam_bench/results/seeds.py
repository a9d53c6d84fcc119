"""``seeds.csv``: how much of the training text two seeds share; its columns, and how it is written and read."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.results.tidy import read_csv, typed_frame, write_csv

if TYPE_CHECKING:
    from pandas import DataFrame

PLACE_COLUMNS = ("data", "data_order", "streams", "batch_sequences", "seq_len", "n_tokens", "steps")
"""The columns that say which runs two seeds are compared in."""
SEED_COLUMNS: dict[str, type] = {
    "data": str, "data_order": str, "streams": int, "batch_sequences": int, "seq_len": int, "n_tokens": int,
    "steps": int, "seed": int, "other_seed": int, "shared_in_step": float, "shared_anywhere": float,
    "correlation": float, "steps_read": int, "reason": str,
}  # fmt: skip
"""Columns of seeds.csv; ``shared_anywhere`` is counted where ``steps_read`` are all, and else computed."""


def write_seeds(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write ``seeds.csv`` atomically, in full precision."""
    write_csv(typed_frame(list(rows), SEED_COLUMNS), path)


def read_seeds(path: Path) -> "DataFrame":
    """Read ``seeds.csv``; ``ValueError`` for a wrong column, a value of the wrong type or a duplicate row."""
    return read_csv(path, SEED_COLUMNS, (*PLACE_COLUMNS, "seed", "other_seed"))
