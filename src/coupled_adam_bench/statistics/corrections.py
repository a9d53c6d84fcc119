"""Corrections for testing many hypotheses at once, by statsmodels; NaN is no test, counts for none and stays NaN."""

import math
from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values (Holm 1979), in the order given.

    Those of at most alpha hold, with a probability of 1 - alpha, no false one.
    """
    return _adjusted(p_values, "holm")


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return the adjusted p-values of Benjamini and Hochberg (1995), in the order given.

    Among those of at most alpha, the expected share of false ones is at most alpha.
    """
    return _adjusted(p_values, "fdr_bh")


def _adjusted(p_values: Sequence[float], method: str) -> list[float]:
    from statsmodels.stats.multitest import multipletests

    tested = [i for i, p in enumerate(p_values) if not math.isnan(p)]
    adjusted = [math.nan] * len(p_values)
    if tested:
        for i, p in zip(tested, multipletests([p_values[i] for i in tested], method=method)[1], strict=True):
            adjusted[i] = float(p)
    return adjusted
