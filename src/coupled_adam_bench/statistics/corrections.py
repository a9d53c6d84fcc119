"""Corrections for testing many hypotheses at once; NaN is no test, counts for none and stays NaN."""

from collections.abc import Sequence

import numpy as np
from statsmodels.stats.multitest import fdrcorrection


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values (Holm 1979), in the order given.

    Those of at most alpha hold, with a probability of 1 - alpha, no false one. They are the bits of statsmodels'
    ``multipletests``, which collects all garbage of the process in each call.
    """
    adjusted = np.array(p_values, dtype=float)
    order = np.argsort(adjusted, kind="stable")[: np.isfinite(adjusted).sum()]  # NaN is last
    largest = np.maximum.accumulate(adjusted[order] * np.arange(len(order), 0, -1))
    adjusted[order] = np.minimum(largest, 1.0)
    return list(map(float, adjusted))


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return the adjusted p-values of Benjamini and Hochberg (1995), by statsmodels, in the order given.

    Among those of at most alpha, the expected share of false ones is at most alpha.
    """
    adjusted = np.array(p_values, dtype=float)
    if (tested := np.isfinite(adjusted)).any():
        adjusted[tested] = fdrcorrection(adjusted[tested])[1]
    return list(map(float, adjusted))
