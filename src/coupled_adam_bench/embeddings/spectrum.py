"""The singular values of an embedding matrix, its principal directions, and what both say about its dimension.

V: rows    D: width    K: singular values, min(V, D) of them, in descending order
"""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_ACCURATE = 1e-3
"""Share of the largest singular value down to which the root of an eigenvalue keeps nine digits."""


def gram(embeddings_VD: Array) -> Array:
    """Return E^T E (D, D); what is not finite in it raises no warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        gram_DD: Array = embeddings_VD.T @ embeddings_VD
    return gram_DD


def principal_components(embeddings_VD: Array, gram_DD: Array | None = None) -> tuple[Array, Array]:
    """Return the singular values of a matrix (K,), descending, and its principal directions (D, D), ascending.

    The directions are the unit eigenvectors of E^T E as columns, by ascending eigenvalue; their signs are arbitrary.
    Small singular values are computed as ‖E c‖ for their direction c, since the root of the eigenvalue loses half the
    digits. All numbers are NaN if E^T E is not finite. ``gram_DD`` is E^T E, if it is known.
    """
    n_rows, width = embeddings_VD.shape
    eigenvalues_D, directions_DD = _eigenvectors(gram(embeddings_VD) if gram_DD is None else gram_DD)
    singular_D = np.sqrt(np.maximum(eigenvalues_D, 0.0))
    n_small = int(np.searchsorted(singular_D, _ACCURATE * singular_D[-1], side="right"))
    if n_small > 0 and not math.isnan(singular_D[-1]):
        singular_D[:n_small] = np.linalg.norm(embeddings_VD @ directions_DD[:, :n_small], axis=0)
    return np.sort(singular_D)[::-1][: min(n_rows, width)].copy(), directions_DD


def principal_directions(embeddings_VD: Array, gram_DD: Array | None = None) -> Array:
    """Return the principal directions of a matrix (D, D); see :func:`principal_components`."""
    return _eigenvectors(gram(embeddings_VD) if gram_DD is None else gram_DD)[1]


def _eigenvectors(gram_DD: Array) -> tuple[Array, Array]:
    """Return the eigenvalues (D,) of E^T E, ascending, and its eigenvectors as columns; NaN if it is not finite."""
    if not np.all(np.isfinite(gram_DD)):
        return np.full(len(gram_DD), math.nan), np.full_like(gram_DD, math.nan)
    eigenvalues_D, directions_DD = np.linalg.eigh(gram_DD)
    return eigenvalues_D, directions_DD


def kappa(embeddings_VD: Array, directions_DD: Array | None = None) -> float:
    """Return 100 times the smallest over the largest of the min(V, D) singular values; NaN if all are zero.

    A singular value is computed as ‖E c‖ for its direction c, since the root of the eigenvalue loses half the digits.
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
    """Return (sum s^2)^2 / sum s^4 of the singular values s, in 1..K: how many directions share the squared norm.

    It is NaN if all singular values are zero.
    """
    largest = float(singular_values_K[0])
    if not largest > 0:
        return math.nan
    squares_K = (singular_values_K / largest) ** 2
    return float(squares_K.sum() ** 2 / (squares_K @ squares_K))
