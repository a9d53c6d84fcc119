"""The partition function Z(c) = sum_i exp(c . e_i) of an embedding matrix, for directions c and
-c, and bounds that say which directions have its extremes.

V: rows    D: width    K: directions    R: rows of a block
"""

import math

import numpy as np
from numpy.typing import NDArray

from embedding_geometry.spectrum import gram

Array = NDArray[np.float64]

COLUMNS, _ROWS = 64, 8192  # directions and rows of a block, which bound the extra memory
_MAX_EXPONENT = 600.0
"""Exponent up to which neither exp(x) nor exp(-x), nor a sum of them, leaves the range of
float64."""
_UNIT_ROUNDOFF = 2.0**-53
_UNIT_ROUNDOFF_FLOAT32 = 2.0**-24
_MAX_EXPONENT_FLOAT32 = 80.0
"""Exponent up to which neither exp(x) nor exp(-x) leaves the range of float32."""
_EXP_FLOAT32 = 2.0**-20
"""Bound of the relative error of exp and its inverse in float32: three times the 2.52 units in the
last place that NumPy states for exp."""
_COLUMNS_FLOAT32, _ROWS_FLOAT32 = 96, 2048  # these blocks stay in the cache
_FEW = 16
"""Directions that are multiplied in float64 at once: a product of few takes as long as reading the
matrix."""


class Bounds:
    """Bounds of log Z, by which few directions are left that can have its minimum or its maximum.

    A projection is the mean m plus y. Across the directions that have been multiplied, the farthest
    row has a distance d from the mean row, and |y| is at most d. As phi(y) = (exp(y) - 1 - y) / y^2
    increases, log (Z / V) lies between m + log(1 + var phi(-d)) and m + log(1 + var phi(d)). Mean
    and variance follow from the mean row and E^T E, and each multiplied direction makes d smaller.

    Products in float32 take half the time. They leave a narrow interval for log Z, and whichever
    direction can then be an extreme is multiplied in float64.

    ``centered`` asks for the matrix minus its mean row, and ``scale`` multiplies it. ``gram_DD`` is
    E^T E of the matrix as it is given.
    """

    def __init__(
        self,
        embeddings_VD: Array,
        directions_DK: Array,
        gram_DD: Array | None,
        centered: bool = False,
        scale: float = 1.0,
    ) -> None:
        n_rows, width = embeddings_VD.shape
        # A scaled direction gives the projections of the scaled matrix, which needs no copy then.
        directions_DK = directions_DK * scale
        self.embeddings_VD, self.directions_DK = embeddings_VD, directions_DK
        squares_V = np.einsum("vd,vd->v", embeddings_VD, embeddings_VD)
        self.square = float(squares_V.max()) * scale**2
        # The error of a sum of n terms is at most n units of roundoff times the norms (Higham 2002,
        # section 3.1).
        self.roundoff: float = _UNIT_ROUNDOFF * (n_rows + 2 * width + 8)
        mean_D = embeddings_VD.mean(axis=0)
        self.means_K = mean_D @ directions_DK
        self.mean_D = mean_D
        self.distances_V = squares_V - 2 * (embeddings_VD @ mean_D) + mean_D @ mean_D
        self.distances_V *= scale**2
        # Without its mean row, a matrix has the same y, and each m is 0.
        self.centered = centered
        self.levels_K = np.zeros_like(self.means_K) if centered else self.means_K
        # The products and squares that are subtracted add up their errors over the directions.
        self.slack = 4 * width * self.roundoff * self.square
        self.variances_K = None
        self.distance = self.farthest()
        # So few directions are multiplied at once, and need no bounds.
        if directions_DK.shape[1] > COLUMNS:
            gram_DD = gram(embeddings_VD) if gram_DD is None else gram_DD
            squares_K = np.einsum("dk,dk->k", directions_DK, gram_DD @ directions_DK) / n_rows
            self.variances_K = np.maximum(squares_K - self.means_K**2, 0.0)

    def extremes(self) -> NDArray[np.intp]:
        """Return the directions that can have the smallest or the largest log Z, by intervals."""
        left_K = np.arange(self.directions_DK.shape[1])
        if self.variances_K is None:
            return left_K
        # No log Z is the smallest that is above an upper bound of another one.
        smallest, largest = math.inf, -math.inf
        tried, lower, upper = [], [], []
        left_K = self.possible(left_K, smallest, largest)
        while len(left_K) > _FEW:
            block_K = left_K[:_COLUMNS_FLOAT32]
            lower_2K, upper_2K = self.enclose(block_K)
            tried.append(block_K)
            lower.append(lower_2K.min(axis=0))
            upper.append(upper_2K.max(axis=0))
            smallest = min(smallest, float(upper_2K.min()))
            largest = max(largest, float(lower_2K.max()))
            left_K = self.possible(left_K[len(block_K) :], smallest, largest)
        if not tried:
            return left_K
        can_K = (np.concatenate(lower) <= smallest) | (np.concatenate(upper) >= largest)
        return np.concatenate([np.concatenate(tried)[can_K], left_K])

    def enclose(self, block_K: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return a lower and an upper bound of log Z (2, K) of a block of directions, by products
        in float32.

        A block is multiplied once. Products in float32 only have to give the sum of exp(y) - 1 - y
        - y^2 / 2, since the sums of y and y^2 are known. If y is wrong by at most e, a term is
        wrong by at most e (exp(y) - 1 - y) + e^2 / 2 exp(e) (exp(y) + exp(-y)), by Taylor's
        formula. What exp would take out of the range of float32 is multiplied in float64.
        """
        assert self.variances_K is not None
        n_rows, width = self.embeddings_VD.shape
        farthest = self.farthest()
        if not farthest <= _MAX_EXPONENT_FLOAT32:
            log_z_2K = self.multiply(block_K)
            return log_z_2K, log_z_2K
        directions_DK = self.directions_DK[:, block_K].astype(np.float32)
        rows_RD = np.empty((min(_ROWS_FLOAT32, n_rows), width), dtype=np.float32)
        sum_K, squares_K, z_K, inverse_K = np.zeros((4, len(block_K)))
        # The sums over the rows are taken in float64, block by block.
        for start in range(0, n_rows, _ROWS_FLOAT32):
            rows = slice(start, start + _ROWS_FLOAT32)
            block_RD = self.embeddings_VD[rows]
            centered_RD = np.subtract(
                block_RD, self.mean_D, out=rows_RD[: len(block_RD)], casting="same_kind"
            )
            y_RK = centered_RD @ directions_DK
            square_RK = y_RK * y_RK
            self.distances_V[rows] -= square_RK.sum(axis=1)
            squares_K += square_RK.sum(axis=0, dtype=np.float64)
            sum_K += y_RK.sum(axis=0, dtype=np.float64)
            z_RK = np.exp(y_RK, out=y_RK)
            z_K += z_RK.sum(axis=0, dtype=np.float64)
            inverse_K += np.reciprocal(z_RK, out=z_RK).sum(axis=0, dtype=np.float64)

        # A product of n terms is wrong by at most n units of roundoff, and a few for its factors.
        wrong = (width + 8) * _UNIT_ROUNDOFF_FLOAT32 * self.distance
        n_columns = len(block_K)
        self.slack += 2 * self.distance * math.sqrt(n_columns) * wrong + n_columns * wrong**2
        self.slack += (n_columns + 2) * _UNIT_ROUNDOFF_FLOAT32 * (self.distance + wrong) ** 2
        lower, upper = [], []
        for sign, sums_K in ((1, z_K), (-1, inverse_K)):
            first_K = sums_K - n_rows - sign * sum_K
            terms_K = n_rows + n_rows * self.variances_K[block_K] / 2 + first_K - squares_K / 2
            error_K = wrong * np.abs(first_K) + wrong**2 * math.exp(wrong) * (z_K + inverse_K)
            error_K += _EXP_FLOAT32 * sums_K + 4 * _UNIT_ROUNDOFF_FLOAT32 * squares_K
            mean_K = sign * self.levels_K[block_K]
            with np.errstate(divide="ignore"):
                lower.append(mean_K + np.log(np.maximum(terms_K - error_K, 0.0)))
            upper.append(mean_K + np.log(terms_K + error_K))
        error = self.error(farthest)
        return np.array(lower) - error, np.array(upper) + error

    def farthest(self) -> float:
        """Return a bound of the distance of any row from the mean row, across the directions that
        are left."""
        return math.sqrt(max(float(self.distances_V.max()), 0.0) + self.slack)

    def error(self, farthest: float) -> float:
        """Return the error of a bound of log Z by the roundoff of float64, for a distance of the
        farthest row."""
        error = 1 + math.log(len(self.embeddings_VD)) + math.sqrt(self.square)
        return 2 * self.roundoff * (error + 4 * self.square * _phi(farthest))

    def multiply(self, block_K: NDArray[np.intp]) -> Array:
        """Return log Z (2, K) of a block of directions for both signs, by their products with the
        matrix."""
        directions_DK, means_K = self.directions_DK[:, block_K], self.means_K[block_K]
        longest = self.distance if self.centered else math.sqrt(self.square)
        log_z = []
        # A block of rows stays in the cache from its product to its sums.
        for start in range(0, len(self.embeddings_VD), _ROWS):
            rows = slice(start, start + _ROWS)
            projections_RK = self.embeddings_VD[rows] @ directions_DK
            centered_RK = projections_RK - means_K
            self.distances_V[rows] -= np.einsum("rk,rk->r", centered_RK, centered_RK)
            log_z.append(_log_z(centered_RK if self.centered else projections_RK, longest))
        sums_2K: Array = np.logaddexp.reduce(log_z, axis=0)
        return sums_2K

    def possible(
        self, left_K: NDArray[np.intp], smallest: float, largest: float
    ) -> NDArray[np.intp]:
        """Return which of the directions can have a log Z below ``smallest`` or above ``largest``,
        the likeliest first."""
        if self.variances_K is None or len(left_K) == 0:
            return left_K
        n_rows = len(self.embeddings_VD)
        farthest = self.farthest()
        if not farthest <= _MAX_EXPONENT:
            return left_K
        means_K, variances_K = np.abs(self.levels_K[left_K]), self.variances_K[left_K]
        below_K = math.log(n_rows) + np.log1p(variances_K * _phi(-farthest))
        above_K = math.log(n_rows) + np.log1p(variances_K * _phi(farthest))
        error = self.error(farthest)
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
