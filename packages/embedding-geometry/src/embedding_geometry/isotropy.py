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
from embedding_geometry.spectrum import gram, principal_directions

Array = NDArray[np.float64]
Isotropy = Literal["both_signs", "eig_float32"]

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
    if gram_DD is not None and keeps_digits and len(gram_DD) > COLUMNS:
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
    bounds = Bounds(embeddings_VD, directions_DK, gram_DD)
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
