"""Calibration by token frequency: how probable a model finds each token on average, beside how often it is there.

V: tokens of the vocabulary    P: pieces of windows    G: held-out documents
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.embeddings.frequency import frequency_bins

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """A group of tokens in held-out text: the mean over tokens, and the whole group as if it were one token.

    ``mean_log_ratio`` is the mean of log(p / f) over the ``n_occurring`` tokens that are in the text, where p is the
    mean probability of a token over all positions, and f the share of positions at which it is the target (Kar 2026,
    arXiv 2609.37535). ``pooled_log_ratio`` is the logarithm of sum p over sum f, over all tokens of the group. Both are
    NaN if none of the tokens is in the text.
    """

    n_tokens: int
    n_occurring: int
    mean_log_ratio: float
    pooled_log_ratio: float


def calibration(predicted_V: Floats, counts_V: NDArray[np.int64], chosen_V: NDArray[np.bool_]) -> Calibration:
    """Return the calibration of the chosen tokens.

    ``predicted_V`` are the mean probabilities, ``counts_V`` how often each token is the target. A token of
    probability 0 makes the mean minus infinity.
    """
    n_targets = counts_V.sum()
    predicted, counts = predicted_V[chosen_V], counts_V[chosen_V]
    occurs = counts > 0
    if not occurs.any():
        return Calibration(len(counts), 0, math.nan, math.nan)
    with np.errstate(divide="ignore"):
        log_ratios = np.log(predicted[occurs]) - np.log(counts[occurs] / n_targets)
        pooled = np.log(predicted.sum()) - np.log(counts.sum() / n_targets)
    return Calibration(len(counts), int(occurs.sum()), float(log_ratios.mean()), float(pooled))


def pooled_error(documents_P: NDArray[np.int64], predicted_P: Floats, counts_P: Floats) -> float:
    """Return the standard error of a pooled log ratio over held-out documents, by the jackknife.

    A piece of text is of one document; ``predicted_P`` and ``counts_P`` are the sums over it of the group's probability
    and of its targets. NaN if one document has all targets of the group, or its probability is 0.
    """
    _, place_P = np.unique(documents_P, return_inverse=True)
    predicted_G, counts_G = np.bincount(place_P, predicted_P), np.bincount(place_P, counts_P)
    n = len(counts_G)
    with np.errstate(divide="ignore", invalid="ignore"):
        without_G = np.log((predicted_G.sum() - predicted_G) / (counts_G.sum() - counts_G))
        whole = np.log(predicted_G.sum() / counts_G.sum())
        error = math.sqrt((n - 1) / n * float(((without_G - whole) ** 2).sum()))
    return error if math.isfinite(error) else math.nan


def calibration_curve(
    predicted_V: Floats, counts_V: NDArray[np.int64], unigram_counts: NDArray[np.integer[Any]]
) -> dict[str, list[Any]]:
    """Return the calibration of tokens in bins of their count in the training text, which is ``unigram_counts``.

    The bins are those of :func:`frequency_bins`, with the fields of :class:`Calibration`; None is what is not finite.
    Bins by the count in the held-out text itself would choose the tokens that are there more often than expected.
    """
    names = ("n_tokens", "n_occurring", "mean_log_ratio", "pooled_log_ratio")
    curve: dict[str, list[Any]] = {"count": [], **{name: [] for name in names}}
    for count, chosen_V in frequency_bins(unigram_counts):
        found = calibration(predicted_V, counts_V, chosen_V)
        curve["count"].append(count)
        for name in names:
            value = getattr(found, name)
            curve[name].append(value if math.isfinite(value) else None)
    return curve
