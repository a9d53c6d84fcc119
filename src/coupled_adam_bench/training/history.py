"""``history.jsonl``: one JSON line per logged step, appended while training."""

import json
import os
from pathlib import Path
from typing import Any

from coupled_adam_bench.files import read_json_lines, write_text


def rewind(path: Path, step: int, source: Path) -> None:
    """Write the rows of ``source``, mostly ``path`` itself, up to ``step``: training goes on from there."""
    write_text(path, "".join(json.dumps(row) + "\n" for row in read_json_lines(source) if row["step"] <= step))


def append(path: Path, row: dict[str, Any]) -> None:
    """Append one row."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())
