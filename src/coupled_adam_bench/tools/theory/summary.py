"""What both the stage ``theory`` and the report take from the records of a drift. Light: no numpy or torch."""

from collections.abc import Sequence


def largest_after_warmup(steps: Sequence[int], update_sums: Sequence[float], warmup: int) -> float | None:
    """Return the largest relative sum of updates of the steps after the warmup, in which updates are tiny."""
    settled = [value for step, value in zip(steps, update_sums, strict=True) if step > warmup]
    return max(settled, default=None)
