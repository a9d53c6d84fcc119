"""Boundaries of group-sequential tests: how small p must be at each look for an error of ``alpha`` over all of them.

Lan and DeMets (1983) spend the error as information grows; the boundaries follow by recursive integration (Armitage,
McPherson and Rowe 1969). Test statistics are normal there. For t-tests their p-values are compared with the nominal
levels, the usual approximation (Jennison and Turnbull 2000, sec. 4.4); docs/statistics.md says how good it is.
"""

import math
from collections.abc import Sequence
from typing import Literal

Spending = Literal["obrien_fleming", "pocock"]
_NODES = 400
"""Points of the integration; with 100, boundaries differ by less than 1e-10 from those with 3000."""
_LOWEST = -10.0
"""The lower end of the integration, in standard deviations; the part below it is no larger than 1e-23."""


def spent(spending: Spending, fraction: float, alpha: float) -> float:
    """Return the error that is spent when a ``fraction`` of the information is there; one-sided [Lan and DeMets]."""
    from scipy.special import ndtr, ndtri

    if spending == "pocock":
        return alpha * math.log1p((math.e - 1) * fraction)
    return float(2 * ndtr(ndtri(alpha / 2) / math.sqrt(fraction)))


def boundaries(fractions: Sequence[float], alpha: float, spending: Spending) -> list[float]:
    """Return the least z of each look that decides; ``fractions`` of the information ascend, and the last is 1.

    Nothing stops a study for futility: the error stays ``alpha`` however the looks are used.
    """
    import numpy as np
    from scipy.optimize import brentq
    from scipy.special import ndtr, ndtri

    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    found: list[float] = []
    # The density of z sqrt(fraction), a Brownian motion, on the paths that have crossed no boundary yet.
    points, density, before, used = np.zeros(1), np.ones(1), 0.0, 0.0
    for fraction in fractions:
        step = math.sqrt(fraction - before)
        error = spent(spending, fraction, alpha) - used
        used += error

        def excess(z: float, at: float = math.sqrt(fraction), step: float = step, error: float = error) -> float:
            return float(density @ ndtr((points - z * at) / step)) - error  # noqa: B023 - called in this round only

        highest = max(10.0, -float(ndtri(error)) + 1) if error > 0 else math.inf
        z = float(brentq(excess, -10.0, highest, xtol=1e-12)) if error > 0 else math.inf
        found.append(z)
        low, high = _LOWEST * math.sqrt(fraction), min(z, 10.0) * math.sqrt(fraction)
        new_points = low + (high - low) * (nodes + 1) / 2
        kernel = np.exp(-(((new_points[:, None] - points[None, :]) / step) ** 2) / 2) / (step * math.sqrt(2 * math.pi))
        density = (kernel @ density) * weights * (high - low) / 2
        points, before = new_points, fraction
    return found


def nominal_levels(looks: Sequence[int], alpha: float, spending: Spending) -> list[float]:
    """Return the level of p at each look, given as the number of seeds that are there; the last look has all."""
    from scipy.special import ndtr

    return [float(ndtr(-z)) for z in boundaries([look / looks[-1] for look in looks], alpha, spending)]
