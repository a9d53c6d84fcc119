"""Post-processing of an embedding matrix, which shows a metric without the effect of the mean shift.

V: rows    D: width    K: removed directions
"""

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.embeddings.spectrum import principal_directions

Array = NDArray[np.float64]
_ROWS = 4096  # rows per block: bounds the extra memory


def subtract_mean(embeddings_VD: Array) -> Array:
    """Return a copy of the embeddings minus their mean, shape (V, D) (Bis et al. 2021)."""
    centered_VD: Array = embeddings_VD - embeddings_VD.mean(axis=0)
    return centered_VD


def all_but_the_top(embeddings_VD: Array, n_directions: int | None = None) -> Array:
    """Return a copy (V, D) of the embeddings without their mean and ``n_directions`` largest principal components.

    The default is D/100 rounded down, but at least 1 (Mu & Viswanath 2018, section 2.3). Raises ``ValueError`` if
    ``n_directions`` is not in 0..D.
    """
    width = embeddings_VD.shape[1]
    n_directions = max(1, width // 100) if n_directions is None else n_directions
    if not 0 <= n_directions <= width:
        raise ValueError(f"n_directions: {n_directions} is not in 0..{width}")
    remaining_VD = subtract_mean(embeddings_VD)
    top_DK = principal_directions(remaining_VD)[:, width - n_directions :]
    for start in range(0, len(remaining_VD), _ROWS):
        rows_RD = remaining_VD[start : start + _ROWS]
        rows_RD -= (rows_RD @ top_DK) @ top_DK.T
    return remaining_VD
