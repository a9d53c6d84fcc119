"""The rows of an embedding matrix by how often their tokens occur in the training text: bands, bins
and curves.

V: rows    D: width
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BINS_PER_DECADE = 4
"""Bins of curves over frequency for each factor of ten of the count."""
_ROWS = 4096  # rows per block: bounds the extra memory


def bands_of_tokens(counts_V: NDArray[np.int64], shares: Sequence[float]) -> NDArray[np.int64]:
    """Return the number of each token's band, shape (V,), given its count in the training text: 0
    if it is not in it.

    ``shares`` are ascending: each is the share of the training text that a band and all rarer bands
    make up.

    A token lies at the share of the training text that rarer tokens are, plus half the share of
    those that are as frequent as itself: so equally frequent tokens are in one band. ``ValueError``
    if the counts are none.
    """
    total = int(counts_V.sum())
    if total == 0:
        raise ValueError("unigram_counts: all counts are 0; prepare the data again")
    counts, of_token_V, n_tokens = np.unique(counts_V, return_inverse=True, return_counts=True)
    mass = counts * n_tokens
    places = (np.cumsum(mass) - mass / 2) / total
    numbers = 1 + np.searchsorted(shares, places)
    numbers[counts == 0] = 0
    bands_V: NDArray[np.int64] = numbers[of_token_V]
    return bands_V


def seen_rows(unigram_counts: NDArray[np.integer], n_rows: int) -> NDArray[np.bool_]:
    """Return which of ``n_rows`` rows belong to tokens that occur; rows beyond the counts do
    not."""
    seen_V = np.zeros(n_rows, dtype=bool)
    seen_V[: len(unigram_counts)] = np.asarray(unigram_counts) > 0
    return seen_V


def keep_rows(embeddings_VD: Array, kept_V: NDArray[np.bool_]) -> Array:
    """Move the kept rows to the top of the matrix, in their order, and return the view of them.

    It overwrites the matrix: a copy of the largest embeddings would need as much memory again.
    """
    n_kept = 0
    for start in range(0, len(embeddings_VD), _ROWS):
        block_RD = embeddings_VD[start : start + _ROWS][kept_V[start : start + _ROWS]]
        embeddings_VD[n_kept : n_kept + len(block_RD)] = block_RD
        n_kept += len(block_RD)
    return embeddings_VD[:n_kept]


def frequency_bins(
    counts_V: NDArray[np.integer | np.floating[Any]],
) -> Iterator[tuple[float, NDArray[np.bool_]]]:
    """Yield bins of equal width in log(count) that are not empty, in ascending order, and which
    tokens are in each.

    A bin is named by the geometric mean of its counts. Tokens that never occur come first, with the
    count 0.
    """
    counts_V = np.asarray(counts_V, dtype=np.float64)
    seen_V = counts_V > 0
    bin_V = np.full(len(counts_V), -1, dtype=np.int64)
    bin_V[seen_V] = np.floor(BINS_PER_DECADE * np.log10(counts_V[seen_V])).astype(np.int64)
    for index in np.unique(bin_V):
        in_bin_V = bin_V == index
        yield 0.0 if index < 0 else float(np.exp(np.log(counts_V[in_bin_V]).mean())), in_bin_V


def norm_frequency_curve(
    lengths_V: Array, unigram_counts: NDArray[np.integer]
) -> dict[str, list[float]]:
    """Return the norms of embeddings against the counts of their tokens, in the bins of
    ``frequency_bins``.

    The lists have an entry for each bin: the geometric mean ``count``, the mean and the standard
    deviation (of the population) of the norms, and ``n_tokens``.
    """
    counts_V = np.zeros(len(lengths_V))
    counts_V[: len(unigram_counts)] = unigram_counts
    curve: dict[str, list[float]] = {"count": [], "mean_norm": [], "sd_norm": [], "n_tokens": []}
    for count, in_bin_V in frequency_bins(counts_V):
        curve["count"].append(count)
        curve["mean_norm"].append(float(lengths_V[in_bin_V].mean()))
        curve["sd_norm"].append(float(lengths_V[in_bin_V].std()))
        curve["n_tokens"].append(int(in_bin_V.sum()))
    return curve
