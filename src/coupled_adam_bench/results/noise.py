"""``noise.csv``: where the spread of a number comes from; its columns, and how it is written and read."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.results.tidy import read_csv, typed_frame, write_csv

if TYPE_CHECKING:
    from pandas import DataFrame

SEEDS, INIT, ORDER, REST, EVALUATION = "seeds", "initial weights", "order of the data", "rest", "evaluation"
"""Values of ``source``; ``seeds`` are both seeds at once, ``rest`` is interaction and rounding, and ``evaluation``
which text and questions the evaluation has."""
GROUP_COLUMNS = ("n_params", "n_tokens", "optimizer", "model", "data", "recipe", "block")
NOISE_COLUMNS: dict[str, type] = {
    "n_params": int, "n_tokens": int, "optimizer": str, "metric": str, "source": str, "variance": float, "low": float,
    "high": float, "df": int, "n": int, "design": str, "reason": str, "model": str, "data": str, "recipe": str,
    "block": str,
}  # fmt: skip
"""Columns of noise.csv; ``low`` and ``high`` are the 95 % interval of the ``variance``."""


def write_noise_rows(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write ``noise.csv`` atomically, in full precision."""
    write_csv(typed_frame(list(rows), NOISE_COLUMNS), path)


def read_noise(path: Path) -> "DataFrame":
    """Read ``noise.csv``; ``ValueError`` for a wrong column, a value of the wrong type or a duplicate row."""
    return read_csv(path, NOISE_COLUMNS, (*GROUP_COLUMNS, "metric", "source"))
