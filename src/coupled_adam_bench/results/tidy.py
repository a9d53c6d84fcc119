"""Tidy CSV files with typed columns: written whole, and read back bit for bit."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from pandas import DataFrame

from coupled_adam_bench.store.files import atomic_path
from coupled_adam_bench.store.markup import csv_cell, text_of_cell

# Python's float reads every digit; other programs write NaN as an empty field.
_READERS: dict[type, Callable[[str], Any]] = {
    str: text_of_cell,
    float: lambda text: float(text or "nan"),
}


def typed_frame(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, type]) -> DataFrame:
    """Return a data frame of ``rows`` with the given columns and types."""
    rows = list(rows)
    kinds = {name: kind for name, kind in columns.items() if kind is not str}
    values = {}
    for name in columns:
        values[name] = [row.get(name) for row in rows]
    return DataFrame(values).astype(kinds)


def write_csv(frame: DataFrame, path: Path) -> None:
    """Write ``frame`` to ``path`` atomically, floats in the fewest digits that read back as the
    same float64."""
    frame = frame.rename(columns=_cell)
    for name in frame.select_dtypes(exclude=["number", "bool"]):
        frame[name] = frame[name].map(_cell)
    with atomic_path(path) as temporary:
        frame.to_csv(temporary, index=False, na_rep="NaN", lineterminator="\n")


def _cell(value: Any) -> Any:
    return csv_cell(value) if isinstance(value, str) else value


def read_csv(path: Path, columns: Mapping[str, type], key: tuple[str, ...]) -> DataFrame:
    """Read a CSV file that has exactly ``columns`` and no two rows that agree in all columns of
    ``key``.

    Raises ``ValueError`` that names the file and what is wrong in it.
    """
    converters = {name: _READERS[kind] for name, kind in columns.items() if kind in _READERS}
    kinds = {name: kind for name, kind in columns.items() if kind not in _READERS}
    try:
        frame = pd.read_csv(path, dtype=kinds, converters=converters, keep_default_na=False)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{path}: not a CSV file in UTF-8 with the columns {', '.join(columns)} ({error})"
        ) from None
    # Of lines that are longer than the header, pandas takes the first field as an index.
    if set(frame.columns) != set(columns) or not isinstance(frame.index, pd.RangeIndex):
        raise ValueError(
            f"{path}: its columns are {', '.join(frame.columns)}; needed are {', '.join(columns)}"
        )
    twice = frame.duplicated(list(key))
    if twice.any():
        row = frame[twice].iloc[0]
        raise ValueError(
            f"{path}: two rows with {', '.join(f'{name}={row[name]}' for name in key)}"
        )
    return frame[list(columns)]
