"""What is left of a difference once the rounding of its computation is taken away.

Equal accuracies, as means over tasks and seeds, may differ in their last bit. Such a difference
would win a comparison and, with the same bit in each seed, have p = 0.
"""

ROUNDING = 1e-12
"""A difference of numbers is none if it is less than this share of the largest of them.

Sums and means in float64 are off by some 1e-16 of their terms; trained models of float32 differ by
more than 1e-9.
"""


def rounding_of(*numbers: float) -> float:
    """Return the largest size of what is left of ``numbers`` only by rounding."""
    return ROUNDING * max(map(abs, numbers))


def without_rounding(value: float, *numbers: float) -> float:
    """Return ``value``, which was computed from ``numbers``, or 0 if it is smaller than their
    rounding."""
    return 0.0 if abs(value) < rounding_of(*numbers) else value


def difference(first: float, second: float) -> float:
    """Return ``first`` minus ``second``, or 0 if that is rounding."""
    return without_rounding(first - second, first, second)
