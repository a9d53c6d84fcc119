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

_COLUMNS, _ROWS = 64, 8192  # directions and rows of a block, which bound the extra memory
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
    overflows. The directions are orthonormal columns. ``gram_DD`` is E^T E, if it is known.
    """
    if np.any(np.isnan(directions_DK)):
        return math.nan
    bounds = _Bounds(embeddings_VD, directions_DK, gram_DD)
    smallest, largest = math.inf, -math.inf
    possible_K = bounds.possible(np.arange(directions_DK.shape[1]), smallest, largest)
    while len(possible_K) > 0:
        log_z_2K = bounds.multiply(possible_K[:_COLUMNS])
        smallest = min(smallest, float(log_z_2K.min()))
        largest = max(largest, float(log_z_2K.max()))
        possible_K = bounds.possible(possible_K[_COLUMNS:], smallest, largest)
    return math.exp(smallest - largest)


class _Bounds:
    """Bounds of log Z of the directions that the matrix has not been multiplied with.

    A projection is the mean m plus y. Across the directions that have been multiplied, the farthest
    row has a distance d from the mean row, and |y| is at most d. As phi(y) = (exp(y) - 1 - y) / y^2
    increases, log (Z / V) lies between m + log(1 + var phi(-d)) and m + log(1 + var phi(d)). Mean
    and variance follow from the mean row and E^T E, and each multiplied direction makes d smaller.
    """

    def __init__(self, embeddings_VD: Array, directions_DK: Array, gram_DD: Array | None) -> None:
        n_rows, width = embeddings_VD.shape
        self.embeddings_VD, self.directions_DK = embeddings_VD, directions_DK
        squares_V = np.einsum("vd,vd->v", embeddings_VD, embeddings_VD)
        self.square = float(squares_V.max())
        # The error of a sum of n terms is at most n units of roundoff times the norms (Higham 2002,
        # section 3.1).
        self.roundoff = _UNIT_ROUNDOFF * (n_rows + 2 * width + 8)
        mean_D = embeddings_VD.mean(axis=0)
        self.means_K = mean_D @ directions_DK
        self.distances_V = squares_V - 2 * (embeddings_VD @ mean_D) + mean_D @ mean_D
        self.variances_K = None
        # So few directions are multiplied at once, and need no bounds.
        if directions_DK.shape[1] > _COLUMNS:
            gram_DD = gram(embeddings_VD) if gram_DD is None else gram_DD
            squares_K = np.einsum("dk,dk->k", directions_DK, gram_DD @ directions_DK) / n_rows
            self.variances_K = np.maximum(squares_K - self.means_K**2, 0.0)

    def multiply(self, block_K: NDArray[np.intp]) -> Array:
        """Return log Z (2, K) of a block of directions for both signs, by their products with the
        matrix."""
        directions_DK, means_K = self.directions_DK[:, block_K], self.means_K[block_K]
        longest = math.sqrt(self.square)
        log_z = []
        # A block of rows stays in the cache from its product to its sums.
        for start in range(0, len(self.embeddings_VD), _ROWS):
            rows = slice(start, start + _ROWS)
            projections_RK = self.embeddings_VD[rows] @ directions_DK
            centered_RK = projections_RK - means_K
            self.distances_V[rows] -= np.einsum("rk,rk->r", centered_RK, centered_RK)
            log_z.append(_log_z(projections_RK, longest))
        sums_2K: Array = np.logaddexp.reduce(log_z, axis=0)
        return sums_2K

    def possible(
        self, left_K: NDArray[np.intp], smallest: float, largest: float
    ) -> NDArray[np.intp]:
        """Return which of the directions can have a log Z below ``smallest`` or above ``largest``,
        the likeliest first."""
        if self.variances_K is None or len(left_K) == 0:
            return left_K
        n_rows, width = self.embeddings_VD.shape
        # The products and squares that are subtracted add up their errors over the directions.
        slack = 4 * width * self.roundoff * self.square
        farthest = math.sqrt(max(float(self.distances_V.max()), 0.0) + slack)
        if not farthest <= _MAX_EXPONENT:
            return left_K
        means_K, variances_K = np.abs(self.means_K[left_K]), self.variances_K[left_K]
        below_K = math.log(n_rows) + np.log1p(variances_K * _phi(-farthest))
        above_K = math.log(n_rows) + np.log1p(variances_K * _phi(farthest))
        error = 1 + math.log(n_rows) + math.sqrt(self.square) + 4 * self.square * _phi(farthest)
        error *= 2 * self.roundoff
        # The sign with the smaller Z has its mean below 0, and that with the larger one above 0.
        lower_K, upper_K = below_K - means_K, above_K + means_K
        smallest = min(smallest, float((above_K - means_K).min()))
        largest = max(largest, float((below_K + means_K).max()))
        place_K = np.minimum(_place(lower_K), _place(-upper_K))
        can_K = (lower_K <= smallest + error) | (upper_K >= largest - error)
        order_K = np.argsort(place_K, kind="stable")
        found_K: NDArray[np.intp] = left_K[order_K[can_K[order_K]]]
        return found_K


def _place(values_K: Array) -> NDArray[np.intp]:
    """Return the place of each value among them in ascending order, from 0."""
    places_K = np.empty(len(values_K), dtype=np.intp)
    places_K[np.argsort(values_K, kind="stable")] = np.arange(len(values_K))
    return places_K


def _log_z(projections_RK: Array, longest: float) -> Array:
    """Return log Z (2, K) for both signs; no projection is larger than ``longest``. It overwrites
    its input."""
    if longest <= _MAX_EXPONENT:
        z_RK = np.exp(projections_RK, out=projections_RK)
        sums_K = z_RK.sum(axis=0)
        return np.log([sums_K, np.reciprocal(z_RK, out=z_RK).sum(axis=0)])
    log_z = []
    for signed_RK in (projections_RK, np.negative(projections_RK)):
        peak_K = signed_RK.max(axis=0)
        log_z.append(peak_K + np.log(np.exp(signed_RK - peak_K).sum(axis=0)))
    return np.array(log_z)


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
