"""Numbers as text, the only place where anything is rounded."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coupled_adam_bench.results.sample import Sample

MISSING = "-"
_MINUS = "\u2212"
_LONGEST = 1e12
"""From here on a number is printed in scientific notation, such as 1.234e+50: its digits would fill
a line."""


@dataclass(frozen=True)
class Shorthand:
    """A number in print: ``mean`` such as ``0.123``, and ``spread`` such as ``(4)``, which may be
    empty."""

    mean: str
    spread: str = ""

    def __str__(self) -> str:
        """Return the whole number."""
        return f"{self.mean} {self.spread}".rstrip()

    @property
    def missing(self) -> bool:
        """Whether there is no number."""
        return self.mean == MISSING


def fixed(value: float, digits: int) -> str:
    """Return a number with ``digits`` decimals, a true minus sign and no minus zero; ``-`` for what
    is not finite.

    A number of 13 digits and more has four significant ones, such as ``1.234e+50``.
    """
    if not math.isfinite(value):
        return MISSING
    if abs(value) >= _LONGEST:
        return significant(value, 4)
    text = f"{value:.{digits}f}"
    negative = text.startswith("-") and float(text) != 0
    return (_MINUS if negative else "") + text.removeprefix("-")


def shorthand(sample: Sample, digits: int) -> Shorthand:
    """Return ``0.123 (4)``: the mean, and the standard deviation in units of its last digit.

    A standard deviation of several such units shows as many, ``2.97 (12)`` is 2.97 +- 0.12; less
    than half a unit shows ``(0)``. A single value has no parentheses, and a missing one is ``-``.
    Where one of the two is too long, both are in scientific notation, and the standard deviation is
    the number itself: ``1.234e+50 (2.1e+48)``.
    """
    mean = fixed(sample.mean, digits)
    if mean == MISSING or sample.n < 2:
        return Shorthand(mean)
    if max(abs(sample.mean), sample.sd) >= _LONGEST:
        return Shorthand(significant(sample.mean, 4), f"({significant(sample.sd, 2)})")
    units = f"{sample.sd:.{digits}f}".replace(".", "").lstrip("0") or "0"
    return Shorthand(mean, f"({units})")


def paddings(column: Sequence[Shorthand]) -> list[int]:
    """Return how many characters each number's spread is shorter than the longest, which aligns the
    means.

    A missing number stands alone and has no padding.
    """
    longest = max((len(number.spread) for number in column), default=0)
    padded = []
    for number in column:
        padded.append(0 if number.missing else longest - len(number.spread))
    return padded


def significant(value: float, digits: int = 3) -> str:
    """Return a number in ``digits`` significant digits, for lists where magnitudes differ."""
    return f"{value:.{digits}g}".replace("-", _MINUS, 1) if math.isfinite(value) else MISSING


def interval(low: float, high: float, digits: int = 3) -> str:
    """Return ``[0.1, 0.2]`` in significant digits, ``-`` without an end."""
    if math.isnan(low) or math.isnan(high):
        return MISSING
    return f"[{significant(low, digits)}, {significant(high, digits)}]"


def with_interval(value: float, low: float, high: float, digits: int) -> str:
    """Return ``0.05 [0.01, 0.09]``: a value and the ends of its interval, with ``digits``
    decimals."""
    return f"{fixed(value, digits)} [{fixed(low, digits)}, {fixed(high, digits)}]"


def p_value(value: float) -> str:
    """Return a p-value with four decimals, ``< 0.0001`` for smaller ones."""
    return "< 0.0001" if value < 0.0001 else fixed(value, 4)


def plural(count: int, noun: str) -> str:
    """Return ``1 run`` or ``2 runs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
