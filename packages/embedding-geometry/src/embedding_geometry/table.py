"""Writes tables for the terminal; it imports nothing heavy."""

from collections.abc import Sequence


def align(table: Sequence[Sequence[str]], n_left: int = 2) -> list[str]:
    """Return the lines of a table, its first ``n_left`` columns to the left and the others to the
    right."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return [
        "  ".join(
            f"{cell:<{width}}" if column < n_left else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
