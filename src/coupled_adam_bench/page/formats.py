"""Numbers as text, the only place where anything is rounded."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coupled_adam_bench.results.facts import ALPHA
from coupled_adam_bench.results.sample import Sample

MISSING = "-"
_MINUS = "\u2212"
_LONGEST = 1e12
"""From here on a number is printed in scientific notation, such as 1.234e+50: its digits would fill
a line."""
_SPARE = 9
"""A number is rounded to this many digits more first. So 0.1175, in the middle of 0.117 and 0.118,
is printed as the same one of them whichever way it was computed (``results/sample.py``)."""


@dataclass(frozen=True)
class Shorthand:
    """A number in print: ``mean`` such as ``0.123``, and ``spread`` such as ``(4)``, which may be
    empty; ``padding`` characters behind it align the means of its column."""

    mean: str
    spread: str = ""
    padding: int = 0

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
    text = f"{round(value, digits + _SPARE):.{digits}f}"
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
    units = f"{round(sample.sd, digits + _SPARE):.{digits}f}".replace(".", "").lstrip("0") or "0"
    return Shorthand(mean, f"({units})")


def aligned(column: Sequence[Shorthand]) -> list[Shorthand]:
    """Return the numbers of a column with the padding that aligns their means: by how many
    characters each spread is shorter than the longest.

    A missing number stands without a mean and has no padding.
    """
    longest = max((len(number.spread) for number in column), default=0)
    found = []
    for number in column:
        padding = 0 if number.missing else longest - len(number.spread)
        found.append(replace(number, padding=padding))
    return found


def significant(value: float, digits: int = 3) -> str:
    """Return a number in ``digits`` significant digits, for lists where magnitudes differ."""
    if not math.isfinite(value):
        return MISSING
    settled = float(f"{value:.{digits + _SPARE}g}")
    return f"{settled:.{digits}g}".replace("-", _MINUS)


def grouped(value: float, digits: int = 3) -> str:
    """Return a number in ``digits`` significant digits with its thousands apart: ``97,700``."""
    if not math.isfinite(value):
        return MISSING
    return f"{float(f'{value:.{digits}g}'):,.15g}".replace("-", _MINUS)


def interval(low: float, high: float, digits: int = 3) -> str:
    """Return ``[0.1, 0.2]`` in significant digits, ``-`` without an end."""
    if math.isnan(low) or math.isnan(high):
        return MISSING
    return f"[{significant(low, digits)}, {significant(high, digits)}]"


_WIDE = 1e5
"""From here on a difference with its interval is printed in significant digits, such as
``1.93e+07``."""
_MOST_DECIMALS = 12
"""The most decimals that a number gets to be told from what decides."""


def with_interval(value: float, low: float, high: float, digits: int) -> str:
    """Return ``0.05 [0.01, 0.09]``: a value and the ends of its interval, with ``digits`` decimals;
    only the value if it has no interval."""
    return _with_ends(*(fixed(each, digits) for each in (value, low, high)))


def difference_with_interval(value: float, low: float, high: float, digits: int) -> str:
    """Return the same of a difference, with as many digits as :func:`decisive` says."""
    return _with_ends(*decisive(value, low, high, digits=digits))


def _with_ends(value: str, low: str, high: str) -> str:
    return value if MISSING in (low, high) else f"{value} [{low}, {high}]"


def decisive(value: float, low: float, high: float, digits: int) -> tuple[str, str, str]:
    """Return a difference and the ends of its interval with ``digits`` decimals, or with as many
    more as show on which side of 0 each end lies: 0.0002 and not 0.000."""
    if max(map(abs, (value, low, high))) >= _WIDE:
        return significant(value), significant(low), significant(high)
    for end in (low, high):
        while digits < _MOST_DECIMALS and end != 0 and round(end, digits) == 0:
            digits += 1
    return fixed(value, digits), fixed(low, digits), fixed(high, digits)


def p_value(value: float, level: float = ALPHA) -> str:
    """Return a p-value with four decimals, or with as many more as tell it from the ``level`` that
    decides: 0.0499999 and not 0.0500.

    One that is below 0.0001 and below the level is ``< 0.0001``.
    """
    if value < min(0.0001, level):
        return "< 0.0001"
    digits = 4
    while digits < _MOST_DECIMALS and value != level and round(value - level, digits) == 0:
        digits += 1
    return fixed(value, digits)


def p_equals(value: float) -> str:
    """Return ``= 0.0123`` or ``< 0.0001``: a p-value behind its symbol."""
    text = p_value(value)
    return text if text.startswith("<") else f"= {text}"


def plural(count: int, noun: str) -> str:
    """Return ``1 run`` or ``2 runs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
