"""``history.jsonl``: one JSON line per logged step, appended while training."""

import json
import os
from pathlib import Path
from typing import Any

from coupled_adam_bench.files import write_text


def _whole_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a history; a last line cut short by a kill is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def rewind(path: Path, step: int) -> None:
    """Drop the rows after ``step``: training goes on from there and writes them again."""
    write_text(path, "".join(json.dumps(row) + "\n" for row in _whole_rows(path) if row["step"] <= step))


def append(path: Path, row: dict[str, Any]) -> None:
    """Append one row."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())
