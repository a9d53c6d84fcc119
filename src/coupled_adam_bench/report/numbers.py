"""Numbers as text: they are rounded here, once, for all formats."""

import math
import unicodedata
from dataclasses import dataclass

MISSING = "-"


def _with_sign(text: str) -> str:
    """Return a formatted number with a true minus, and without one if it is zero."""
    return text.replace("-", "−", 1) if float(text) else text.removeprefix("-")


def fixed(value: float, digits: int) -> str:
    """Return a number with ``digits`` decimals, ``-`` for a missing one."""
    if not math.isfinite(value):
        return MISSING
    # So that 0.1175 is rounded alike however it was computed.
    return _with_sign(f"{round(value, digits + 9):.{digits}f}")


def significant(value: float, digits: int = 3) -> str:
    """Return a number with ``digits`` significant digits, ``-`` for a missing one."""
    return _with_sign(f"{value:.{digits}g}") if math.isfinite(value) else MISSING


@dataclass(frozen=True)
class Shorthand:
    """A mean and the spread of its last digits: ``0.123`` and ``(4)``, which is 0.123 ± 0.004."""

    mean: str
    spread: str = ""

    @property
    def text(self) -> str:
        """Both, as they are printed."""
        return f"{self.mean} {self.spread}".rstrip()


def shorthand(mean: float, sd: float, digits: int) -> Shorthand:
    """Return mean and spread in print; the spread is empty for a single value."""
    if math.isnan(mean) or math.isnan(sd):
        return Shorthand(fixed(mean, digits))
    units = fixed(sd, digits).replace(".", "").lstrip("0") or "0"
    return Shorthand(fixed(mean, digits), f"({units})")


def width(text: str) -> int:
    """Return the columns that a text takes on a terminal: the bar of r̄ takes none."""
    return sum(not unicodedata.combining(character) for character in text)
