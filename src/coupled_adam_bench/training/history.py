"""``history.jsonl``: one JSON line per logged step, appended while training and copied into each checkpoint."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coupled_adam_bench.store.files import write_text


class History:
    """The lines of a run so far, in memory and in a file; the file can be rewritten if it is lost or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: list[str] = []

    @property
    def text(self) -> str:
        """The content that the file should have."""
        return "".join(self._lines)

    def restore(self, lines: Sequence[str]) -> None:
        """Go back to these lines, in memory and on disk."""
        self._lines = list(lines)
        self.mend()

    def append(self, row: dict[str, Any]) -> None:
        """Append one row."""
        self._lines.append(json.dumps(row) + "\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(self._lines[-1])
            file.flush()
            os.fsync(file.fileno())

    def mend(self) -> None:
        """Write the whole file again, unless it is intact."""
        if not (self.path.is_file() and self.path.read_bytes() == self.text.encode()):
            write_text(self.path, self.text)


def split_lines(text: str) -> list[str]:
    """Return the lines of a history's text, each with its line end."""
    return text.splitlines(keepends=True)


def whole_lines(path: Path, last_step: int) -> tuple[list[str], int]:
    """Return the lines of a history up to ``last_step``, and the number of damaged lines that were left out."""
    lines, n_damaged = [], 0
    for line in split_lines(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else []:
        try:
            step = json.loads(line)["step"]
        except (ValueError, KeyError, TypeError):
            n_damaged += 1
            continue
        if line.endswith("\n") and step <= last_step:
            lines.append(line)
    return lines, n_damaged
