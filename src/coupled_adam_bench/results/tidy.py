"""Tidy CSV files with typed columns: written whole, read back bit for bit, and refused with the line that is wrong."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.files import atomic_path

if TYPE_CHECKING:
    from pandas import DataFrame

_KINDS = {int: "an integer", float: "a number or NaN", bool: "True or False"}


def typed_frame(records: list[dict[str, Any]], columns: dict[str, type]) -> "DataFrame":
    """Return a data frame of ``records`` with the given columns and types."""
    from pandas import DataFrame

    kinds = {name: kind for name, kind in columns.items() if kind is not str}
    return DataFrame(records, columns=list(columns)).astype(kinds)


def write_csv(frame: "DataFrame", path: Path) -> None:
    """Write ``frame`` to ``path`` atomically, floats in the fewest digits that read back as the same float64."""
    with atomic_path(path) as temporary:
        frame.to_csv(temporary, index=False, na_rep="NaN", lineterminator="\n")


def _parse(text: str, kind: type) -> Any:
    if kind is float:
        return float(text) if text else float("nan")  # other programs write NaN as an empty field
    if kind is bool:
        return {"True": True, "False": False}[text]
    return kind(text)


def read_csv(path: Path, columns: dict[str, type], key: tuple[str, ...]) -> "DataFrame":
    """Read a CSV file that has exactly ``columns`` and no two rows that agree in all columns of ``key``.

    Raises ``ValueError`` with the file, and where there is one the line, of what is wrong.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}: not a CSV file in UTF-8 with a header ({error})") from None
    if missing := [name for name in columns if name not in header]:
        raise ValueError(f"{path}: no column {', '.join(missing)}; needed are {', '.join(columns)}")
    if unknown := [name for name in header if name not in columns]:
        raise ValueError(f"{path}: unknown column {', '.join(unknown)}; allowed are {', '.join(columns)}")
    seen: dict[tuple[Any, ...], int] = {}
    records = []
    for line, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ValueError(f"{path}:{line}: {len(row)} fields, the header has {len(header)}")
        record = {}
        for name, text in zip(header, row, strict=True):
            try:
                record[name] = _parse(text, columns[name])
            except (KeyError, ValueError):
                raise ValueError(f"{path}:{line}: {name} is {text!r}, not {_KINDS[columns[name]]}") from None
        identity = tuple(record[name] for name in key)
        if identity in seen:
            values = ", ".join(f"{name}={value}" for name, value in zip(key, identity, strict=True))
            raise ValueError(f"{path}:{line}: the same row as line {seen[identity]} ({values})")
        seen[identity] = line
        records.append(record)
    return typed_frame(records, columns)
