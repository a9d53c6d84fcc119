"""The singular values of an embedding matrix, its principal directions, and the matrix without some
of them.

Post-processing shows a metric without the effect of the mean shift. Its functions return a matrix
(V, D) and leave theirs as it is, unless ``out`` is that matrix itself.

V: rows    D: width
K: singular values, min(V, D) of them, in descending order, or removed directions
"""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_ROWS = 4096  # rows per block: bounds the extra memory
_ACCURATE = 1e-3
"""Share of the largest singular value down to which the root of an eigenvalue keeps nine digits."""


def gram(embeddings_VD: Array) -> Array:
    """Return E^T E (D, D); what is not finite in it raises no warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        gram_DD: Array = embeddings_VD.T @ embeddings_VD
    return gram_DD


def centered_gram(embeddings_VD: Array) -> Array:
    """Return E^T E (D, D) of a matrix minus its mean row, which is not copied; see ``gram``."""
    mean_D = embeddings_VD.mean(axis=0)
    gram_DD: Array = np.zeros((len(mean_D), len(mean_D)))
    for start in range(0, len(embeddings_VD), _ROWS):
        gram_DD += gram(embeddings_VD[start : start + _ROWS] - mean_D)
    return gram_DD


def principal_components(embeddings_VD: Array, gram_DD: Array | None = None) -> tuple[Array, Array]:
    """Return the singular values of a matrix (K,), descending, and its principal directions (D, D),
    ascending.

    The directions are the unit eigenvectors of E^T E as columns, by ascending eigenvalue; their
    signs are arbitrary. Small singular values are computed as ‖E c‖ for their direction c, since
    the root of the eigenvalue loses half the digits. All numbers are NaN if E^T E is not finite.
    ``gram_DD`` is E^T E, if it is known.
    """
    n_rows, width = embeddings_VD.shape
    eigenvalues_D, directions_DD = _eigenvectors(
        gram(embeddings_VD) if gram_DD is None else gram_DD
    )
    singular_D = np.sqrt(np.maximum(eigenvalues_D, 0.0))
    n_small = int(np.searchsorted(singular_D, _ACCURATE * singular_D[-1], side="right"))
    if n_small > 0 and not math.isnan(singular_D[-1]):
        singular_D[:n_small] = np.linalg.norm(embeddings_VD @ directions_DD[:, :n_small], axis=0)
    return np.sort(singular_D)[::-1][: min(n_rows, width)].copy(), directions_DD


def principal_directions(embeddings_VD: Array, gram_DD: Array | None = None) -> Array:
    """Return the principal directions of a matrix (D, D); see ``principal_components``."""
    return _eigenvectors(gram(embeddings_VD) if gram_DD is None else gram_DD)[1]


def _eigenvectors(gram_DD: Array) -> tuple[Array, Array]:
    """Return the eigenvalues (D,) of E^T E, ascending, and its eigenvectors as columns; NaN if it
    is not finite."""
    if not np.all(np.isfinite(gram_DD)):
        return np.full(len(gram_DD), math.nan), np.full_like(gram_DD, math.nan)
    eigenvalues_D, directions_DD = np.linalg.eigh(gram_DD)
    return eigenvalues_D, directions_DD


def kappa(embeddings_VD: Array, directions_DD: Array | None = None) -> float:
    """Return 100 times the smallest over the largest of the min(V, D) singular values; NaN if all
    are zero.

    A singular value is computed as ‖E c‖ for its direction c, since the root of the eigenvalue
    loses half the digits.
    """
    directions_DD = principal_directions(embeddings_VD) if directions_DD is None else directions_DD
    n_rows, width = embeddings_VD.shape
    extremes_D2 = directions_DD[:, [max(width - n_rows, 0), width - 1]]
    smallest, largest = np.linalg.norm(embeddings_VD @ extremes_D2, axis=0)
    return 100 * float(smallest / largest) if largest > 0 else math.nan


def effective_rank(singular_values_K: Array) -> float:
    """Return exp(H), H the entropy of the singular values as shares of their sum; it is in 1..K.

    The definition is that of Roy & Vetterli 2007. It is NaN if all singular values are zero.
    """
    total = float(singular_values_K.sum())
    if not total > 0:
        return math.nan
    shares_K = singular_values_K[singular_values_K > 0] / total
    return math.exp(-float(shares_K @ np.log(shares_K)))


def participation_ratio(singular_values_K: Array) -> float:
    """Return (sum s^2)^2 / sum s^4 of the singular values s, in 1..K: how many directions share the
    squared norm.

    It is NaN if all singular values are zero.
    """
    largest = float(singular_values_K[0])
    if not largest > 0:
        return math.nan
    squares_K = (singular_values_K / largest) ** 2
    return float(squares_K.sum() ** 2 / (squares_K @ squares_K))


def subtract_mean(embeddings_VD: Array, out: Array | None = None) -> Array:
    """Return the embeddings minus their mean (Bis et al. 2021)."""
    centered_VD: Array = np.subtract(embeddings_VD, embeddings_VD.mean(axis=0), out=out)
    return centered_VD


def subtract_scaled_mean(embeddings_VD: Array, out: Array | None = None) -> Array:
    """Return e - ‖e‖ m, where m is the mean of the embeddings' directions e / ‖e‖ (Bis et al.
    2021).

    A row of zeros has no direction: it stays, and is not part of the mean.
    """
    lengths_V = np.sqrt(np.einsum("vd,vd->v", embeddings_VD, embeddings_VD))
    inverse_V = np.divide(1.0, lengths_V, out=np.zeros_like(lengths_V), where=lengths_V != 0)
    mean_direction_D = (inverse_V @ embeddings_VD) / max(np.count_nonzero(inverse_V), 1)
    changed_VD = np.empty_like(embeddings_VD) if out is None else out
    for start in range(0, len(embeddings_VD), _ROWS):
        rows = slice(start, start + _ROWS)
        np.subtract(
            embeddings_VD[rows], np.outer(lengths_V[rows], mean_direction_D), out=changed_VD[rows]
        )
    return changed_VD


def remove_directions(
    embeddings_VD: Array, directions_DK: Array, out: Array | None = None
) -> Array:
    """Return the embeddings without their components along orthonormal directions."""
    changed_VD = np.empty_like(embeddings_VD) if out is None else out
    for start in range(0, len(embeddings_VD), _ROWS):
        rows_RD = embeddings_VD[start : start + _ROWS]
        np.subtract(
            rows_RD,
            (rows_RD @ directions_DK) @ directions_DK.T,
            out=changed_VD[start : start + _ROWS],
        )
    return changed_VD


def top_directions(width: int) -> int:
    """Return the number of directions that all-but-the-top removes: D/100 (Mu & Viswanath 2018),
    but at least 1."""
    return max(1, width // 100)
