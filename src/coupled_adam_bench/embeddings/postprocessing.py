"""Post-processing of an embedding matrix, which shows a metric without the effect of the mean shift.

The functions return a matrix (V, D) and leave theirs as it is, unless ``out`` is that matrix itself.

V: rows    D: width    K: removed directions
"""

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.embeddings.spectrum import principal_directions

Array = NDArray[np.float64]
_ROWS = 4096  # rows per block: bounds the extra memory


def subtract_mean(embeddings_VD: Array, out: Array | None = None) -> Array:
    """Return the embeddings minus their mean (Bis et al. 2021)."""
    centered_VD: Array = np.subtract(embeddings_VD, embeddings_VD.mean(axis=0), out=out)
    return centered_VD


def subtract_scaled_mean(embeddings_VD: Array, out: Array | None = None) -> Array:
    """Return e - ‖e‖ m, where m is the mean of the embeddings' directions e / ‖e‖ (Bis et al. 2021).

    A row of zeros has no direction: it stays, and is not part of the mean.
    """
    lengths_V = np.sqrt(np.einsum("vd,vd->v", embeddings_VD, embeddings_VD))
    inverse_V = np.divide(1.0, lengths_V, out=np.zeros_like(lengths_V), where=lengths_V != 0)
    mean_direction_D = (inverse_V @ embeddings_VD) / max(np.count_nonzero(inverse_V), 1)
    changed_VD = np.empty_like(embeddings_VD) if out is None else out
    for start in range(0, len(embeddings_VD), _ROWS):
        rows = slice(start, start + _ROWS)
        np.subtract(embeddings_VD[rows], np.outer(lengths_V[rows], mean_direction_D), out=changed_VD[rows])
    return changed_VD


def remove_directions(embeddings_VD: Array, directions_DK: Array, out: Array | None = None) -> Array:
    """Return the embeddings without their components along orthonormal directions."""
    changed_VD = np.empty_like(embeddings_VD) if out is None else out
    for start in range(0, len(embeddings_VD), _ROWS):
        rows_RD = embeddings_VD[start : start + _ROWS]
        np.subtract(rows_RD, (rows_RD @ directions_DK) @ directions_DK.T, out=changed_VD[start : start + _ROWS])
    return changed_VD


def top_directions(width: int) -> int:
    """Return the number of directions that all-but-the-top removes: D/100 (Mu & Viswanath 2018), but at least 1."""
    return max(1, width // 100)


def all_but_the_top(embeddings_VD: Array, n_directions: int | None = None) -> Array:
    """Return the embeddings without their mean and ``n_directions`` largest principal components.

    The default is D/100 rounded down, but at least 1 (Mu & Viswanath 2018, section 2.3). Raises ``ValueError`` if
    ``n_directions`` is not in 0..D.
    """
    width = embeddings_VD.shape[1]
    n_directions = top_directions(width) if n_directions is None else n_directions
    if not 0 <= n_directions <= width:
        raise ValueError(f"n_directions: {n_directions} is not in 0..{width}")
    centered_VD = subtract_mean(embeddings_VD)
    top_DK = principal_directions(centered_VD)[:, width - n_directions :]
    return remove_directions(centered_VD, top_DK, out=centered_VD)
