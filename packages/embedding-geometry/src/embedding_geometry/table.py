"""Writes tables for the terminal; it imports nothing heavy."""

from collections.abc import Sequence


def align(table: Sequence[Sequence[str]], n_left: int = 2) -> list[str]:
    """Return the lines of a table, its first ``n_left`` columns to the left and the others to the
    right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = list(zip(row, widths, strict=True))
        left = [cell.ljust(width) for cell, width in cells[:n_left]]
        right = [cell.rjust(width) for cell, width in cells[n_left:]]
        lines.append("  ".join(left + right).rstrip())
    return lines
