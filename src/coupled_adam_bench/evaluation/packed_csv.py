"""Tables that are kept beside an evaluation: CSV, packed with gzip, the same bytes for the same values.

Floats have the fewest digits that read back as the same float64.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from coupled_adam_bench.store.markup import csv_cell, text_of_cell


def pack_csv(header: Sequence[str], columns: Sequence[Iterable[Any]]) -> bytes:
    """Return a table as the contents of its file; the columns hold text, integers and floats of Python."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    cells = ([csv_cell(value) if isinstance(value, str) else value for value in column] for column in columns)
    writer.writerows(zip(*cells, strict=True))
    return gzip.compress(text.getvalue().encode(), mtime=0)


def unpack_csv(contents: bytes, header: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the columns of a file's contents as text, empty ones of a table without rows.

    ``ValueError`` if they are not such a table.
    """
    try:
        found, *rows = csv.reader(io.StringIO(gzip.decompress(contents).decode(), newline=""))
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(error) from None
    if found != list(header):
        raise ValueError(f"columns {found}, not {list(header)}")
    return [tuple(map(text_of_cell, column)) for column in zip(*rows, strict=True)] if rows else [() for _ in header]


def damaged(path: Path, what: str, error: Exception) -> ValueError:
    """Return the error of a file that does not hold ``what`` it should."""
    return ValueError(f"{path}: not {what} ({error}); delete it and start again")
