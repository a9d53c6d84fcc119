"""Tidy CSV files with typed columns: written whole, and read back bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from pandas import DataFrame

from coupled_adam_bench.store.files import atomic_path
from coupled_adam_bench.store.markup import csv_cell, text_of_cell


def typed_frame(records: list[dict[str, Any]], columns: dict[str, type]) -> DataFrame:
    """Return a data frame of ``records`` with the given columns and types."""
    return _typed({name: [record.get(name) for record in records] for name in columns}, columns)


def _typed(values: dict[str, list[Any]], columns: dict[str, type]) -> DataFrame:
    kinds = {name: kind for name, kind in columns.items() if kind is not str}
    return DataFrame(values, columns=list(columns)).astype(kinds)


def write_csv(frame: DataFrame, path: Path) -> None:
    """Write ``frame`` to ``path`` atomically, floats in the fewest digits that read back as the same float64."""
    frame = frame.rename(columns=_cell)
    for name in frame.select_dtypes(exclude=["number", "bool"]):
        frame[name] = frame[name].map(_cell)
    with atomic_path(path) as temporary:
        frame.to_csv(temporary, index=False, na_rep="NaN", lineterminator="\n")


def _cell(value: Any) -> Any:
    return csv_cell(value) if isinstance(value, str) else value


_READERS: dict[type, Callable[[str], Any]] = {
    str: text_of_cell,
    int: int,
    float: lambda text: float(text or "nan"),  # other programs write NaN as an empty field
    bool: {"True": True, "False": False}.__getitem__,
}


def read_csv(path: Path, columns: dict[str, type], key: tuple[str, ...]) -> DataFrame:
    """Read a CSV file that has exactly ``columns`` and no two rows that agree in all columns of ``key``.

    Raises ``ValueError`` that names the file and what is wrong in it.
    """
    try:
        texts = pd.read_csv(path, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except ValueError as error:
        raise ValueError(f"{path}: not a CSV file in UTF-8 with a header ({error})") from None
    if sorted(texts.columns) != sorted(columns) or not isinstance(texts.index, pd.RangeIndex):
        raise ValueError(f"{path}: its columns are {', '.join(texts.columns)}; needed are {', '.join(columns)}")
    values: dict[str, list[Any]] = {}
    for name, kind in columns.items():
        try:
            values[name] = list(map(_READERS[kind], texts[name].tolist()))
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path}: a value of {name} is not of type {kind.__name__} ({error})") from None
    try:
        frame = _typed(values, columns)
    except OverflowError:
        raise ValueError(f"{path}: an integer of more than 64 bits") from None
    if (twice := frame.duplicated(list(key))).any():
        row = frame[twice].iloc[0]
        raise ValueError(f"{path}: two rows with {', '.join(f'{name}={row[name]}' for name in key)}")
    return frame
