"""Rows that no measurement can have are refused before they are written."""

import math
from typing import Any

import pytest

from coupled_adam_bench.store.stored import row, wrong_row

LOSS = row("test", "loss", 3.25)


@pytest.mark.parametrize(
    ("rows", "reason", "problem"),
    [
        ([LOSS, row("average", "acc", 1)], None, None),
        ([LOSS | {"value": math.nan}], "diverged", None),
        ([LOSS | {"value": math.nan}], None, "test loss is NaN without a reason"),
        ([LOSS | {"value": None}], None, "test loss is None, not a finite number"),
        ([LOSS | {"value": True}], None, "test loss is True, not a finite number"),
        ([LOSS | {"value": math.inf}], None, "test loss is inf, not a finite number"),
        ([LOSS | {"value": -1.0}], None, "test loss is -1.0, outside 0 to inf"),
        ([row("average", "acc", 7), LOSS], None, "average acc is 7.0, outside 0 to 1"),
        ([LOSS, LOSS], None, "test loss is there twice"),
    ],
)
def test_rows(rows: list[dict[str, Any]], reason: str | None, problem: str | None) -> None:
    assert wrong_row(rows, reason) == problem
