"""Measures how embeddings agree with human ratings of word pairs.

V: rows of the embedding matrix    D: width    P: kept pairs    W: words    B: resamples
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.embeddings.bootstrap import interval, pearson_resamples, resamples, spearman_resamples
from coupled_adam_bench.embeddings.correlation import pearson, spearman
from coupled_adam_bench.evaluation.words import TokenPairs
from coupled_adam_bench.store.record import ResultRow, row
from coupled_adam_bench.study.catalog.names import SUBWORDS

MIN_PAIRS = 3  # two points always correlate perfectly
COSINE, DOT = "cosine", "dot"
CORRELATIONS = {"pearson": (pearson, pearson_resamples), "spearman": (spearman, spearman_resamples)}


@dataclass(frozen=True)
class SetAgreement:
    """How embeddings agree with the ratings of a set: correlations and their 95 % intervals by name."""

    pairs: TokenPairs
    correlations: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    pearson_cosine_resamples: NDArray[np.float64]
    """Pearson's correlation of the cosine in each resample, of which the interval of r_bar is made; shape (B,)."""


def word_vectors(embeddings_VD: NDArray[np.float64], pairs: TokenPairs) -> NDArray[np.float64]:
    """Return the vector of each word (W, D): the mean embedding of its pieces."""
    if not len(pairs.starts):
        return np.empty((0, embeddings_VD.shape[1]))
    n_pieces_W = np.diff([*pairs.starts, len(pairs.pieces)])
    vectors_WD: NDArray[np.float64] = np.add.reduceat(embeddings_VD[pairs.pieces], pairs.starts, axis=0)
    return vectors_WD / n_pieces_W[:, None]


def similarities(embeddings_VD: NDArray[np.float64], pairs: TokenPairs) -> dict[str, NDArray[np.float64]]:
    """Return cosine and dot product of each pair (P,); the cosine with a vector of zeros is NaN."""
    vectors_WD = word_vectors(embeddings_VD, pairs)
    left_PD, right_PD = vectors_WD[pairs.words[:, 0]], vectors_WD[pairs.words[:, 1]]
    dot_P = np.einsum("pd,pd->p", left_PD, right_PD)
    norms_P = np.linalg.norm(left_PD, axis=1) * np.linalg.norm(right_PD, axis=1)
    return {COSINE: np.divide(dot_P, norms_P, out=np.full_like(dot_P, math.nan), where=norms_P > 0), DOT: dot_P}


def set_correlations(embeddings_VD: NDArray[np.float64], pairs: TokenPairs) -> dict[str, float]:
    """Return the correlations of a set by name; NaN with fewer than 3 pairs, a zero vector or no variance."""
    return correlations_of(similarities(embeddings_VD, pairs), pairs.ratings)


def correlations_of(found: dict[str, NDArray[np.float64]], ratings_P: NDArray[np.float64]) -> dict[str, float]:
    """Return the correlations of similarities with ratings by name; see :func:`set_correlations`."""
    enough = len(ratings_P) >= MIN_PAIRS
    return {
        f"{name}_{kind}": correlation(values_P, ratings_P) if enough else math.nan
        for kind, values_P in found.items()
        for name, (correlation, _) in CORRELATIONS.items()
    }


def set_agreement(embeddings_VD: NDArray[np.float64], pairs: TokenPairs) -> SetAgreement:
    """Return the correlations of a set with their percentile intervals over its pairs.

    The resamples depend on the set's name and number of pairs only, so those of two models are the same.
    """
    found = similarities(embeddings_VD, pairs)
    correlations = correlations_of(found, pairs.ratings)
    counts_BP = resamples(pairs.n_pairs, zlib.crc32(pairs.name.encode()))
    intervals, kept = {}, np.full(len(counts_BP), math.nan)
    for name, value in correlations.items():
        if math.isnan(value):
            intervals[name] = (math.nan, math.nan)
            continue
        correlation, _, kind = name.partition("_")
        values_B = CORRELATIONS[correlation][1](found[kind], pairs.ratings, counts_BP)
        intervals[name] = interval(values_B)
        kept = values_B if name == "pearson_cosine" else kept
    return SetAgreement(pairs, correlations, intervals, kept)


def r_bar(correlations: Sequence[float]) -> float:
    """Return 100 times the unweighted mean of the sets' correlations; NaN if one of them is, or if there is none."""
    return 100 * math.fsum(correlations) / len(correlations) if correlations else math.nan


def r_bar_interval(sets: Sequence[SetAgreement]) -> tuple[float, float]:
    """Return the percentile interval of ``r_bar`` over the pairs of all sets, which are drawn independently."""
    if not sets:
        return math.nan, math.nan
    return interval(100 * np.mean([found.pearson_cosine_resamples for found in sets], axis=0))


def r_bar_of(embeddings_VD: NDArray[np.float64], sets: Sequence[TokenPairs]) -> float:
    """Return ``r_bar`` alone."""
    return r_bar([set_correlations(embeddings_VD, pairs)["pearson_cosine"] for pairs in sets])


def word_similarity_rows(
    embeddings_VD: NDArray[np.float64], sets: Sequence[TokenPairs], subword_sets: Sequence[TokenPairs]
) -> tuple[list[ResultRow], list[str]]:
    """Return the rows of all sets and of ``r_bar``, and the reasons for every NaN among them.

    The intervals are of the sets of single tokens only.
    """
    found = [set_agreement(embeddings_VD, pairs) for pairs in sets]
    rows = [each for agreement in found for each in _rows_of_set(agreement)]
    rows.append(row("word_similarity", "r_bar", r_bar([each.correlations["pearson_cosine"] for each in found])))
    low, high = r_bar_interval(found)
    rows += [row("word_similarity", "r_bar_low", low, "percent"), row("word_similarity", "r_bar_high", high, "percent")]
    for pairs in subword_sets:
        correlations = set_correlations(embeddings_VD, pairs)
        rows += _rows_of_pairs(pairs.name + SUBWORDS, pairs)
        rows += [row(pairs.name + SUBWORDS, name, value) for name, value in correlations.items()]
    rows.append(row("word_similarity" + SUBWORDS, "r_bar", r_bar_of(embeddings_VD, subword_sets)))
    return rows, _reasons(embeddings_VD, sets, subword_sets)


def _rows_of_pairs(task: str, pairs: TokenPairs) -> list[ResultRow]:
    return [row(task, "n_pairs", pairs.n_pairs), row(task, "coverage", pairs.coverage)]


def _rows_of_set(found: SetAgreement) -> list[ResultRow]:
    rows = _rows_of_pairs(found.pairs.name, found.pairs)
    for name, value in found.correlations.items():
        low, high = found.intervals[name]
        values = {name: value, f"{name}_low": low, f"{name}_high": high}
        rows += [row(found.pairs.name, metric, number) for metric, number in values.items()]
    return rows


def _reasons(
    embeddings_VD: NDArray[np.float64], sets: Sequence[TokenPairs], subword_sets: Sequence[TokenPairs]
) -> list[str]:
    if not sets:
        return ["r_bar: evaluation.word_similarity has no sets"]
    reasons = []
    for ending, kind, of_kind in (("", "are single tokens", sets), (SUBWORDS, "have known words", subword_sets)):
        for pairs in of_kind:
            name = pairs.name + ending
            if pairs.n_pairs < MIN_PAIRS:
                reasons.append(f"{name}: {pairs.n_pairs} of {pairs.n_read} pairs {kind}, {MIN_PAIRS} are needed")
            elif any(math.isnan(value) for value in set_correlations(embeddings_VD, pairs).values()):
                reasons.append(f"{name}: an embedding is zero or not finite, or similarities or ratings are constant")
    return reasons
