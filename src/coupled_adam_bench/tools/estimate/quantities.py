"""Numbers of an estimate as text: times, sizes, counts and ranges."""

import math

UNKNOWN = "-"


def hours(seconds: float) -> str:
    """Return a time as ``45 s``, ``12 min``, ``5.2 h`` or ``9.5 days``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def size(n_bytes: float | None) -> str:
    """Return bytes in decimal units of three digits: ``1.25 TB``."""
    if n_bytes is None:
        return UNKNOWN
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if n_bytes >= 0.9995 * unit:
            return f"{count(n_bytes / unit)} {name}"
    return f"{n_bytes / 1e3:.0f} kB"


def count(value: float) -> str:
    """Return a number in three digits, large ones with separators."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    digits = 2 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, min(digits, 4))}f}"


def span(low: float, high: float) -> str:
    """Return a range in three digits, ``980 to 1,110``, or a number if both ends are the same."""
    return " to ".join(dict.fromkeys((count(low), count(high))))
