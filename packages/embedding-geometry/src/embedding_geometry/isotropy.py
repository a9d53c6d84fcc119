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

from embedding_geometry.partition import COLUMNS, Bounds
from embedding_geometry.spectrum import centered_gram, gram, principal_directions

Array = NDArray[np.float64]
Isotropy = Literal["both_signs", "eig_float32"]

TRIMMED = 0.001
"""The share of rows that the trimmed isotropy leaves out, rounded up: 51 rows of GPT-2's 50,304; a
choice of ours."""
COMMON_LENGTH = 1.0
"""The root mean square of the rows' 2-norms to which the isotropy at a common length scales a
matrix; a choice of ours."""
_CONSTANT = 1e-12
"""The share of the rows' root mean square length below which what the mean leaves is rounding."""


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
    if gram_DD is not None and keeps_digits and len(gram_DD) > COLUMNS:
        gram_DD = gram_DD - gram(embeddings_VD[others_V])
    else:
        gram_DD = None
    with _ordered(embeddings_VD, order_V, n_left):
        return isotropy(embeddings_VD[:n_left], variant, gram_DD=gram_DD)


def isotropy_centered(
    embeddings_VD: Array,
    centered_gram_DD: Array | None = None,
    centered_directions_DD: Array | None = None,
    gram_DD: Array | None = None,
) -> float:
    """Return the isotropy of a matrix minus its mean row, with both signs of each direction.

    Z is that of Mu & Viswanath 2018, and Z(c) of the centered matrix is Z(c) exp(-c . mu), so no
    copy of the matrix is made. ``centered_gram_DD`` is E^T E of the centered matrix,
    ``centered_directions_DD`` are its principal directions, and ``gram_DD`` is E^T E of the matrix,
    if they are known.
    """
    if centered_directions_DD is None:
        if centered_gram_DD is None:
            centered_gram_DD = centered_gram(embeddings_VD)
        centered_directions_DD = principal_directions(embeddings_VD, centered_gram_DD)
    return isotropy_both_signs(embeddings_VD, centered_directions_DD, gram_DD, centered=True)


def isotropy_common_length(
    embeddings_VD: Array, gram_DD: Array | None = None, directions_DD: Array | None = None
) -> float:
    """Return the isotropy of a matrix whose rows' root mean square length is
    :data:`COMMON_LENGTH`.

    Z grows with the rows' length. So if the rows of two matrices point the same way, the matrix
    with longer rows is less isotropic. This is Iso of Mu & Viswanath 2018 of the scaled matrix,
    with both signs of each direction. It is NaN if all rows are zero. ``gram_DD`` is E^T E and
    ``directions_DD`` are the principal directions, if they are known.
    """
    gram_DD = gram(embeddings_VD) if gram_DD is None else gram_DD
    if directions_DD is None:
        directions_DD = principal_directions(embeddings_VD, gram_DD)
    length = _root_mean_square(gram_DD, len(embeddings_VD))
    if not length > 0:
        return math.nan
    return isotropy_both_signs(embeddings_VD, directions_DD, gram_DD, scale=COMMON_LENGTH / length)


def isotropy_centered_common_length(
    embeddings_VD: Array,
    centered_gram_DD: Array | None = None,
    centered_directions_DD: Array | None = None,
    gram_DD: Array | None = None,
) -> float:
    """Return the isotropy of a matrix minus its mean row, whose rows then have the root mean square
    length :data:`COMMON_LENGTH`.

    What is left is which way the rows point from their mean. It is NaN if all rows are equal. The
    parameters are those of ``isotropy_centered``.
    """
    if centered_gram_DD is None:
        centered_gram_DD = centered_gram(embeddings_VD)
    if centered_directions_DD is None:
        centered_directions_DD = principal_directions(embeddings_VD, centered_gram_DD)
    gram_DD = gram(embeddings_VD) if gram_DD is None else gram_DD
    length = _root_mean_square(centered_gram_DD, len(embeddings_VD))
    if not length > _CONSTANT * _root_mean_square(gram_DD, len(embeddings_VD)):
        return math.nan
    scale = COMMON_LENGTH / length
    return isotropy_both_signs(
        embeddings_VD, centered_directions_DD, gram_DD, centered=True, scale=scale
    )


def _root_mean_square(gram_DD: Array, n_rows: int) -> float:
    """Return the root mean square of the 2-norms of the rows of a matrix, from its E^T E."""
    return math.sqrt(float(np.trace(gram_DD)) / n_rows)


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
    embeddings_VD: Array,
    directions_DK: Array,
    gram_DD: Array | None = None,
    *,
    centered: bool = False,
    scale: float = 1.0,
) -> float:
    """Return min Z(c) / max Z(c) over c = ± the principal directions, Z(c) = sum_i exp(c . e_i); 1
    is isotropic.

    The definition is that of Arora et al. 2016 and Mu & Viswanath 2018. The sign of an eigenvector
    is arbitrary, so both are taken; otherwise the result would depend on the solver. Nothing
    overflows. The directions are orthonormal columns. ``gram_DD`` is E^T E, if it is known.
    ``centered`` subtracts the mean row from each e_i, and ``scale`` multiplies each.
    """
    if np.any(np.isnan(directions_DK)):
        return math.nan
    bounds = Bounds(embeddings_VD, directions_DK, gram_DD, centered, scale)
    extremes_K = bounds.extremes()
    log_z = []
    for start in range(0, len(extremes_K), COLUMNS):
        log_z.append(bounds.multiply(extremes_K[start : start + COLUMNS]))
    log_z_2K = np.concatenate(log_z, axis=1)
    return math.exp(float(log_z_2K.min()) - float(log_z_2K.max()))


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
        blocks = range(0, len(directions_DD), COLUMNS)
        z = [np.exp(directions_DD[:, k : k + COLUMNS].T @ float32_VD.T).sum(axis=1) for k in blocks]
        z_D = np.concatenate(z)
        return round(float(z_D.min() / z_D.max()), 4)
