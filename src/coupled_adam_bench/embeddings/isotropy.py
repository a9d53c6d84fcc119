"""The isotropy of an embedding matrix: min Z(c) / max Z(c) over its principal directions, Z(c) = sum_i exp(c . e_i).

V: rows    D: width    K: directions    R: rows of a block
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.embeddings.spectrum import principal_directions

Array = NDArray[np.float64]
Isotropy = Literal["both_signs", "eig_float32"]

_COLUMNS = 64  # directions per block: bounds the extra memory to a few V x 64 arrays
_ROWS = 512  # rows per block of the pass in float32, which then stays in the cache
_MAX_EXPONENT_FLOAT32 = 60.0
_MAX_EXPONENT_FLOAT64 = 600.0
"""Exponents up to which neither exp(x) nor exp(-x), nor a sum of them, leaves the range of the type."""
_UNIT_ROUNDOFF_FLOAT32 = 2.0**-24
TRIMMED = 0.001
"""The share of rows that the trimmed isotropy leaves out, rounded up: 51 rows of GPT-2's 50,304; a choice of ours."""


def isotropy(embeddings_VD: Array, variant: Isotropy, directions_DD: Array | None = None) -> float:
    """Return the isotropy of a matrix, at most 1; ``variant`` is the study's ``evaluation.isotropy``.

    ``directions_DD`` are the matrix's principal directions, if they are known.
    """
    if variant == "eig_float32":
        return isotropy_eig_float32(embeddings_VD)
    directions_DD = principal_directions(embeddings_VD) if directions_DD is None else directions_DD
    return isotropy_both_signs(embeddings_VD, directions_DD)


def isotropy_trimmed(embeddings_VD: Array, variant: Isotropy) -> float:
    """Return the isotropy of a matrix without its longest rows, which :data:`TRIMMED` counts; at least one is left out.

    Z is a sum of exponentials, so a few long rows can decide it, however the others lie. The principal directions are
    those of the rows that are left. It is NaN if none is left, or if a row is not finite.
    """
    squares_V = np.einsum("vd,vd->v", embeddings_VD, embeddings_VD)
    n_left = len(squares_V) - math.ceil(TRIMMED * len(squares_V))
    if n_left == 0 or not np.all(np.isfinite(squares_V)):
        return math.nan
    with _ordered(embeddings_VD, np.argsort(squares_V, kind="stable"), n_left):
        return isotropy(embeddings_VD[:n_left], variant)


@contextmanager
def _ordered(embeddings_VD: Array, order_V: NDArray[np.intp], n_first: int) -> Iterator[None]:
    """Have the first rows of an order at the top of the matrix meanwhile: a copy would need as much memory again."""
    others = order_V[n_first:]
    inside, free = others[others < n_first], np.setdiff1d(np.arange(n_first, len(order_V)), others)
    places, swapped = np.concatenate([inside, free]), np.concatenate([free, inside])
    embeddings_VD[places] = embeddings_VD[swapped]
    try:
        yield
    finally:
        embeddings_VD[places] = embeddings_VD[swapped]


def isotropy_both_signs(embeddings_VD: Array, directions_DK: Array) -> float:
    """Return min Z(c) / max Z(c) over c = ± the principal directions, Z(c) = sum_i exp(c . e_i); 1 is isotropic.

    The definition is that of Arora et al. 2016 and Mu & Viswanath 2018. The sign of an eigenvector is arbitrary, so
    both are taken; otherwise the result would depend on the solver. Nothing overflows. A pass in float32 finds the few
    directions that can have the smallest or largest Z; their Z is computed in float64.
    """
    if np.any(np.isnan(directions_DK)):
        return math.nan
    longest = math.sqrt(float(np.einsum("vd,vd->v", embeddings_VD, embeddings_VD).max()))
    candidates_DK = directions_DK[:, _may_be_extreme(embeddings_VD, directions_DK, longest)]
    smallest, largest = math.inf, -math.inf
    for start in range(0, candidates_DK.shape[1], _COLUMNS):
        projections_VK = embeddings_VD @ candidates_DK[:, start : start + _COLUMNS]
        log_z_2K = _log_z(projections_VK, longest)
        smallest, largest = min(smallest, float(log_z_2K.min())), max(largest, float(log_z_2K.max()))
    return math.exp(smallest - largest)


def _log_z(projections_VK: Array, longest: float) -> Array:
    """Return log Z (2, K) for both signs; no projection is larger than ``longest``. It overwrites its input."""
    if longest <= _MAX_EXPONENT_FLOAT64:
        z_VK = np.exp(projections_VK, out=projections_VK)
        sums_K = z_VK.sum(axis=0)
        return np.log([sums_K, np.reciprocal(z_VK, out=z_VK).sum(axis=0)])
    log_z = []
    for signed_VK in (projections_VK, np.negative(projections_VK)):
        peak_K = signed_VK.max(axis=0)
        log_z.append(peak_K + np.log(np.exp(signed_VK - peak_K).sum(axis=0)))
    return np.array(log_z)


def _may_be_extreme(embeddings_VD: Array, directions_DK: Array, longest: float) -> NDArray[np.bool_]:
    """Return which directions (K,) can have the smallest or largest Z, by log Z in float32 and the bound of its error.

    The error of a product of D terms is at most D units of roundoff times the norms, that of a sum of R terms R units
    (Higham 2002, section 3.1). Where float32 cannot tell, or has no advantage, all can.
    """
    width, n_directions = directions_DK.shape
    if n_directions <= _COLUMNS or not longest <= _MAX_EXPONENT_FLOAT32:
        return np.ones(n_directions, dtype=bool)
    float32_DK = directions_DK.astype(np.float32)
    z_2K = np.zeros((2, n_directions))
    for start in range(0, len(embeddings_VD), _ROWS):
        z_RK = embeddings_VD[start : start + _ROWS].astype(np.float32) @ float32_DK
        np.exp(z_RK, out=z_RK)
        z_2K[0] += z_RK.sum(axis=0)
        z_2K[1] += np.reciprocal(z_RK, out=z_RK).sum(axis=0)
    log_z_2K = np.log(z_2K)
    # Beside the product and the sum: both factors are rounded, and exp and the reciprocal err by a few units.
    error = _UNIT_ROUNDOFF_FLOAT32 * ((width + 4) * longest + _ROWS + 8)
    near = (log_z_2K <= log_z_2K.min() + 2 * error) | (log_z_2K >= log_z_2K.max() - 2 * error)
    found: NDArray[np.bool_] = near.any(axis=0)
    return found


def isotropy_eig_float32(embeddings_VD: Array) -> float:
    """Return min Z(c) / max Z(c) over general eigenvectors of E^T E in float32, rounded to 4 decimals [C].

    Each eigenvector has the sign that the solver returns, so another LAPACK may give another value. Apart from
    rounding, it is never below :func:`isotropy_both_signs`. It is NaN if E^T E is not finite or if all Z overflow.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        float32_VD = embeddings_VD.astype(np.float32)
        gram_DD = float32_VD.T @ float32_VD
        if not np.all(np.isfinite(gram_DD)):
            return math.nan
        directions_DD = np.linalg.eig(gram_DD).eigenvectors.real
        # The V terms of a direction are contiguous, so NumPy sums them pairwise, as it does in the authors' code.
        blocks = range(0, len(directions_DD), _COLUMNS)
        z = [np.exp(directions_DD[:, k : k + _COLUMNS].T @ float32_VD.T).sum(axis=1) for k in blocks]
        z_D = np.concatenate(z)
        return round(float(z_D.min() / z_D.max()), 4)
