"""Tidy CSV files with typed columns: written whole, read back bit for bit, and refused with the line that is wrong."""

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.store.files import atomic_path
from coupled_adam_bench.store.markup import csv_cell, text_of_cell

if TYPE_CHECKING:
    from pandas import DataFrame

_KINDS = {int: "an integer of 64 bits", float: "a number or NaN", bool: "True or False"}


def typed_frame(records: list[dict[str, Any]], columns: dict[str, type]) -> "DataFrame":
    """Return a data frame of ``records`` with the given columns and types."""
    return _typed({name: [record.get(name) for record in records] for name in columns}, columns)


def _typed(values: dict[str, list[Any]], columns: dict[str, type]) -> "DataFrame":
    from pandas import DataFrame

    kinds = {name: kind for name, kind in columns.items() if kind is not str}
    return DataFrame(values, columns=list(columns)).astype(kinds)


def write_csv(frame: "DataFrame", path: Path) -> None:
    """Write ``frame`` to ``path`` atomically, floats in the fewest digits that read back as the same float64."""
    frame = frame.rename(columns=_cell)
    for name in frame.select_dtypes(exclude=["number", "bool"]):
        frame[name] = frame[name].map(_cell)
    with atomic_path(path) as temporary:
        frame.to_csv(temporary, index=False, na_rep="NaN", lineterminator="\n")


def _cell(value: Any) -> Any:
    return csv_cell(value) if isinstance(value, str) else value


def _text(cell: str) -> str:
    return sys.intern(text_of_cell(cell))


def _float(text: str) -> float:
    return float(text) if text else float("nan")  # other programs write NaN as an empty field


def _int(text: str) -> int:
    if not -(2**63) <= (value := int(text)) < 2**63:
        raise ValueError("more than 64 bits")
    return value


# Text is interned: a long file has few different texts in many rows.
_READERS: dict[type, Callable[[str], Any]] = {
    str: _text,
    int: _int,
    float: _float,
    bool: {"True": True, "False": False}.__getitem__,
}
_ROWS_AT_ONCE = 10_000


def read_csv(path: Path, columns: dict[str, type], key: tuple[str, ...]) -> "DataFrame":
    """Read a CSV file that has exactly ``columns`` and no two rows that agree in all columns of ``key``.

    Raises ``ValueError`` with the file, and where there is one the line, of what is wrong.
    """
    try:
        frame = _read_at_once(path, columns)
        if frame is None:
            with path.open(newline="", encoding="utf-8") as file:
                frame = _typed(_read_columns(path, csv.reader(file), columns), columns)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a CSV file in UTF-8 with a header ({error})") from None
    twice = frame.duplicated(list(key)).to_numpy()
    if twice.any():
        line = int(twice.argmax())
        identity = [frame[name][line] for name in key]
        other = int((frame[list(key)] == identity).all(axis=1).to_numpy().argmax())
        values = ", ".join(f"{name}={value}" for name, value in zip(key, identity, strict=True))
        raise ValueError(f"{path}:{line + 2}: the same row as line {other + 2} ({values})")
    return frame


def _read_at_once(path: Path, columns: dict[str, type]) -> "DataFrame | None":
    """Return what pandas reads, in half the time; None if anything is wrong or unusual, for a closer look."""
    from io import BytesIO

    import pandas as pd

    contents = path.read_bytes()
    if b'"' in contents or b"\r" in contents or b",'" in contents or b"\n'" in contents:
        return None
    try:
        frame = pd.read_csv(BytesIO(contents), dtype=str, keep_default_na=False, skip_blank_lines=False)
        # Pandas refuses a line that is too long, and fills up one that is too short: the commas show it.
        n_commas = (len(frame) + 1) * (len(columns) - 1)
        is_regular = isinstance(frame.index, pd.RangeIndex) and contents.count(b",") == n_commas
        if not is_regular or sorted(frame.columns) != sorted(columns) or frame.empty:
            return None
        for name, kind in columns.items():
            if kind is not str:  # pandas takes 1.0 for 1 and TRUE for True, and an old one rounds decimals
                frame[name] = list(map(_READERS[kind], frame[name].tolist()))
        return frame[list(columns)]
    except (ValueError, KeyError):  # pandas' own errors are ValueErrors
        return None


def _read_columns(path: Path, reader: Iterator[list[str]], columns: dict[str, type]) -> dict[str, list[Any]]:
    """Return the values of each column; ``ValueError`` for a wrong header, and with the line of what is wrong in it."""
    header = next(reader, None)
    if header is None:
        raise ValueError(f"{path}: not a CSV file in UTF-8 with a header (it is empty)")
    if missing := [name for name in columns if name not in header]:
        raise ValueError(f"{path}: no column {', '.join(missing)}; needed are {', '.join(columns)}")
    if unknown := [name for name in header if name not in columns]:
        raise ValueError(f"{path}: unknown column {', '.join(unknown)}; allowed are {', '.join(columns)}")
    if len(header) > len(columns):
        raise ValueError(f"{path}: a column is there twice; needed are {', '.join(columns)}")
    values: dict[str, list[Any]] = {name: [] for name in header}
    line = 2
    # In parts and column by column: a list or a dictionary for each row takes several times as long.
    while rows := list(islice(reader, _ROWS_AT_ONCE)):
        for number, row in enumerate(rows, line):
            if len(row) != len(header):
                raise ValueError(f"{path}:{number}: {len(row)} fields, the header has {len(header)}")
        for name, texts in zip(header, zip(*rows, strict=True), strict=True):
            values[name] += _parsed(path, line, name, texts, columns[name])
        line += len(rows)
    return values


def _parsed(path: Path, line: int, name: str, texts: Sequence[str], kind: type) -> list[Any]:
    """Return texts as values, of which the first is in ``line``; ``ValueError`` for the first that is none."""
    try:
        return list(map(_READERS[kind], texts))
    except (KeyError, ValueError):
        for number, text in enumerate(texts, line):
            try:
                _READERS[kind](text)
            except (KeyError, ValueError):
                raise ValueError(f"{path}:{number}: {name} is {text!r}, not {_KINDS[kind]}") from None
        raise
