"""The form in which numbers are returned, and their units; it imports nothing heavy."""

from typing import Any

ResultRow = dict[str, Any]
"""One number: its task, which says what was measured, its metric, value and unit."""
UNITS = {"kappa": "percent", "r_bar": "percent", "r_bar_low": "percent", "r_bar_high": "percent"}
"""Units of the metrics that have one."""
HEAD = "head"
"""The task of the output matrix, where it is another one than the input matrix."""
SUBWORDS = "_subwords"
"""Ending of the tasks whose words are made of pieces."""


def row(task: str, metric: str, value: float) -> ResultRow:
    """Return one number with its unit."""
    return {"task": task, "metric": metric, "value": float(value), "unit": UNITS.get(metric, "1")}
