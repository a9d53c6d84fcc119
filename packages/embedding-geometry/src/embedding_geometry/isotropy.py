"""The isotropy of an embedding matrix: min Z(c) / max Z(c) over its principal directions, Z(c) =
sum_i exp(c . e_i).

V: rows    D: width    K: directions    R: rows of a block
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from embedding_geometry.spectrum import gram, principal_directions

Array = NDArray[np.float64]
Isotropy = Literal["both_signs", "eig_float32"]

_COLUMNS = 64  # directions per block: bounds the extra memory to a few V x 64 arrays
_MAX_EXPONENT = 600.0
"""Exponent up to which neither exp(x) nor exp(-x), nor a sum of them, leaves the range of
float64."""
_UNIT_ROUNDOFF = 2.0**-53
TRIMMED = 0.001
"""The share of rows that the trimmed isotropy leaves out, rounded up: 51 rows of GPT-2's 50,304; a
choice of ours."""


def isotropy(
    embeddings_VD: Array,
    variant: Isotropy,
    directions_DD: Array | None = None,
    gram_DD: Array | None = None,
) -> float:
    """Return the isotropy of a matrix, at most 1; ``variant`` is the study's
    ``evaluation.isotropy``.

    ``directions_DD`` are the matrix's principal directions and ``gram_DD`` is E^T E, if they are
    known.
    """
    if variant == "eig_float32":
        return isotropy_eig_float32(embeddings_VD)
    if directions_DD is None:
        gram_DD = gram(embeddings_VD) if gram_DD is None else gram_DD
        directions_DD = principal_directions(embeddings_VD, gram_DD)
    return isotropy_both_signs(embeddings_VD, directions_DD, gram_DD)


def isotropy_trimmed(
    embeddings_VD: Array, variant: Isotropy, gram_DD: Array | None = None
) -> float:
    """Return the isotropy of a matrix without its longest rows, which :data:`TRIMMED` counts; at
    least one is left out.

    Z is a sum of exponentials, so a few long rows can decide it, however the others lie. The
    principal directions are those of the rows that are left. It is NaN if none is left, or if a row
    is not finite. ``gram_DD`` is E^T E of the whole matrix, if it is known.
    """
    squares_V = np.einsum("vd,vd->v", embeddings_VD, embeddings_VD)
    n_left = len(squares_V) - math.ceil(TRIMMED * len(squares_V))
    if n_left == 0 or not np.all(np.isfinite(squares_V)):
        return math.nan
    order_V = np.argsort(squares_V, kind="stable")
    others_V = order_V[n_left:]
    # The difference keeps its digits where most of the squared norm is left. A narrow matrix needs
    # no short cut.
    keeps_digits = 2 * squares_V[others_V].sum() <= squares_V.sum()
    if gram_DD is not None and keeps_digits and len(gram_DD) > _COLUMNS:
        gram_DD = gram_DD - gram(embeddings_VD[others_V])
    else:
        gram_DD = None
    with _ordered(embeddings_VD, order_V, n_left):
        return isotropy(embeddings_VD[:n_left], variant, gram_DD=gram_DD)


@contextmanager
def _ordered(embeddings_VD: Array, order_V: NDArray[np.intp], n_first: int) -> Iterator[None]:
    """Have the first rows of an order at the top of the matrix meanwhile: a copy would need as much
    memory again."""
    others = order_V[n_first:]
    inside, free = others[others < n_first], np.setdiff1d(np.arange(n_first, len(order_V)), others)
    places, swapped = np.concatenate([inside, free]), np.concatenate([free, inside])
    embeddings_VD[places] = embeddings_VD[swapped]
    try:
        yield
    finally:
        embeddings_VD[places] = embeddings_VD[swapped]


def isotropy_both_signs(
    embeddings_VD: Array, directions_DK: Array, gram_DD: Array | None = None
) -> float:
    """Return min Z(c) / max Z(c) over c = ± the principal directions, Z(c) = sum_i exp(c . e_i); 1
    is isotropic.

    The definition is that of Arora et al. 2016 and Mu & Viswanath 2018. The sign of an eigenvector
    is arbitrary, so both are taken; otherwise the result would depend on the solver. Nothing
    overflows. Bounds by the moments of the projections mostly leave few directions that can have
    the smallest or largest Z. ``gram_DD`` is E^T E; without it there are no bounds.
    """
    if np.any(np.isnan(directions_DK)):
        return math.nan
    squares_V = np.einsum("vd,vd->v", embeddings_VD, embeddings_VD)
    longest = math.sqrt(float(squares_V.max()))
    candidates_DK = directions_DK
    if gram_DD is not None:
        candidates_DK = candidates_DK[
            :, _within_moments(embeddings_VD, directions_DK, gram_DD, squares_V)
        ]
    smallest, largest = math.inf, -math.inf
    for start in range(0, candidates_DK.shape[1], _COLUMNS):
        projections_VK = embeddings_VD @ candidates_DK[:, start : start + _COLUMNS]
        log_z_2K = _log_z(projections_VK, longest)
        smallest, largest = (
            min(smallest, float(log_z_2K.min())),
            max(largest, float(log_z_2K.max())),
        )
    return math.exp(smallest - largest)


def _log_z(projections_VK: Array, longest: float) -> Array:
    """Return log Z (2, K) for both signs; no projection is larger than ``longest``. It overwrites
    its input."""
    if longest <= _MAX_EXPONENT:
        z_VK = np.exp(projections_VK, out=projections_VK)
        sums_K = z_VK.sum(axis=0)
        return np.log([sums_K, np.reciprocal(z_VK, out=z_VK).sum(axis=0)])
    log_z = []
    for signed_VK in (projections_VK, np.negative(projections_VK)):
        peak_K = signed_VK.max(axis=0)
        log_z.append(peak_K + np.log(np.exp(signed_VK - peak_K).sum(axis=0)))
    return np.array(log_z)


def _within_moments(
    embeddings_VD: Array, directions_DK: Array, gram_DD: Array, squares_V: Array
) -> NDArray[np.bool_]:
    """Return which directions (K,) can have the smallest or largest Z, by mean and variance of
    their projections.

    A projection is the mean m plus y, |y| at most the distance d of the farthest row from the mean
    row. As phi(y) = (exp(y) - 1 - y) / y^2 increases, log (Z / V) lies between m + log(1 + var
    phi(-d)) and m + log(1 + var phi(d)). The directions are not multiplied with the matrix, so this
    takes little time. ``gram_DD`` is E^T E, and ``squares_V`` are the squared norms of the rows.
    """
    (n_rows, width), n_directions = embeddings_VD.shape, directions_DK.shape[1]
    if n_directions <= _COLUMNS:
        return np.ones(n_directions, dtype=bool)
    mean_D = embeddings_VD.mean(axis=0)
    square = float(squares_V.max())
    # The error of a sum of n terms is at most n units of roundoff times the norms (Higham 2002,
    # section 3.1).
    roundoff = _UNIT_ROUNDOFF * (n_rows + 2 * width + 8)
    distances_V = squares_V - 2 * (embeddings_VD @ mean_D) + mean_D @ mean_D
    farthest = math.sqrt(max(float(distances_V.max()), 0.0) + 4 * roundoff * square)
    if not farthest <= _MAX_EXPONENT:
        return np.ones(n_directions, dtype=bool)
    means_K = mean_D @ directions_DK
    squares_K = np.einsum("dk,dk->k", directions_DK, gram_DD @ directions_DK) / n_rows
    variances_K = np.maximum(squares_K - means_K**2, 0.0)
    means_2K = np.array([means_K, -means_K])
    lower_2K = means_2K + np.log1p(variances_K * _phi(-farthest))
    upper_2K = means_2K + np.log1p(variances_K * _phi(farthest))
    error = roundoff * (1 + math.sqrt(square) + 4 * square * _phi(farthest))
    can_2K = (lower_2K <= upper_2K.min() + 2 * error) | (upper_2K >= lower_2K.max() - 2 * error)
    found: NDArray[np.bool_] = can_2K.any(axis=0)
    return found


def _phi(x: float) -> float:
    """Return (exp(x) - 1 - x) / x^2."""
    return (math.expm1(x) - x) / x**2 if abs(x) > 1e-8 else 0.5


def isotropy_eig_float32(embeddings_VD: Array) -> float:
    """Return min Z(c) / max Z(c) over general eigenvectors of E^T E in float32, rounded to 4
    decimals [C].

    Each eigenvector has the sign that the solver returns, so another LAPACK may give another value.
    Apart from rounding, it is never below ``isotropy_both_signs``. It is NaN if E^T E is not
    finite or if all Z overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        float32_VD = embeddings_VD.astype(np.float32)
        gram_DD = float32_VD.T @ float32_VD
        if not np.all(np.isfinite(gram_DD)):
            return math.nan
        directions_DD = np.linalg.eig(gram_DD).eigenvectors.real
        # The V terms of a direction are contiguous, so NumPy sums them pairwise, as it does in the
        # authors' code.
        blocks = range(0, len(directions_DD), _COLUMNS)
        z = [
            np.exp(directions_DD[:, k : k + _COLUMNS].T @ float32_VD.T).sum(axis=1) for k in blocks
        ]
        z_D = np.concatenate(z)
        return round(float(z_D.min() / z_D.max()), 4)
