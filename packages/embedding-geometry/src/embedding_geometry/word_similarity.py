"""Measures how embeddings agree with human ratings of word pairs, whose words are single tokens or
several pieces.

V: rows of the embedding matrix    D: width    P: kept pairs    W: words    S: pieces of all words
B: resamples
"""

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedding_geometry.correlation import (
    interval,
    pearson,
    pearson_resamples,
    resamples,
    spearman,
    spearman_resamples,
)
from embedding_geometry.rows import SUBWORDS, ResultRow, row
from embedding_geometry.word_lists import Pair

if TYPE_CHECKING:
    from tokenizers import Tokenizer


_SPACE_MARKS = ("Ġ", "▁", " ")
"""Beginnings of a token that stands for a space and a word, in byte-level and in SentencePiece
vocabularies."""


@dataclass(frozen=True)
class TokenPairs:
    """A word-similarity set as token ids, of the pairs that are kept."""

    name: str
    pieces: NDArray[np.int64]
    """Token ids of all words, one word after another; shape (S,)."""
    starts: NDArray[np.int64]
    """The index at which the pieces of each word begin; shape (W,)."""
    words: NDArray[np.int64]
    """The two words of each pair, as places in ``starts``; shape (P, 2)."""
    ratings: NDArray[np.float64]
    """Shape (P,)."""
    places: NDArray[np.int64]
    """The place of each pair in its file, from 0; shape (P,)."""
    n_read: int
    """The number of pairs in the file, with those that were dropped."""

    @property
    def n_pairs(self) -> int:
        """The number of pairs that are kept."""
        return len(self.ratings)

    @property
    def coverage(self) -> float:
        """The share of the file's pairs that are kept."""
        return self.n_pairs / self.n_read


def single_token_pairs(
    name: str, pairs: Sequence[Pair], tokenizer: "Tokenizer", word_level: bool, leading_space: bool
) -> TokenPairs:
    """Keep the pairs whose two words are single tokens.

    With ``leading_space`` subword tokenizers are given the word behind a space, as it stands in
    running text: without it GPT-2 keeps 641 of the 2,486 pairs of MEN. A ``word_level`` vocabulary
    is asked for the word itself.
    """
    pieces = _pieces(pairs, tokenizer, word_level, leading_space)
    return _token_pairs(name, pairs, {word: ids for word, ids in pieces.items() if len(ids) == 1})


def subword_pairs(
    name: str, pairs: Sequence[Pair], tokenizer: "Tokenizer", word_level: bool, leading_space: bool
) -> TokenPairs:
    """Keep the pairs whose two words are made of tokens at all, so that a byte-level tokenizer
    keeps all.

    The arguments are those of ``single_token_pairs``.
    """
    pieces = _pieces(pairs, tokenizer, word_level, leading_space)
    return _token_pairs(name, pairs, {word: ids for word, ids in pieces.items() if ids})


def _pieces(
    pairs: Sequence[Pair], tokenizer: "Tokenizer", word_level: bool, leading_space: bool
) -> dict[str, list[int]]:
    """Return the tokens of each word, none of a word with a part that the vocabulary does not
    know."""
    words = sorted({word for pair in pairs for word in pair[:2]})
    if word_level:
        ids = {word: tokenizer.token_to_id(word) for word in words}
        known = {word: [found] for word, found in ids.items() if found is not None}
        return {word: known.get(word, []) for word in words}
    unknown = _unknown_id(tokenizer)
    space = " " if leading_space and not _adds_space(tokenizer) else ""
    encodings = tokenizer.encode_batch([space + word for word in words], add_special_tokens=False)
    pieces = {}
    for word, encoding in zip(words, encodings, strict=True):
        pieces[word] = [] if unknown in encoding.ids else encoding.ids
    return pieces


def _unknown_id(tokenizer: "Tokenizer") -> int | None:
    """Return the token that stands for all text that the vocabulary does not know; a byte-level
    vocabulary has no such token."""
    from tokenizers import models

    if isinstance(tokenizer.model, models.Unigram):  # it shows its unknown token only here
        found: int | None = json.loads(tokenizer.to_str())["model"]["unk_id"]
        return found
    name = getattr(tokenizer.model, "unk_token", None)
    return None if name is None else tokenizer.token_to_id(name)


def _adds_space(tokenizer: "Tokenizer") -> bool:
    """Tell whether the tokenizer itself puts a space before a text, as those of SentencePiece can
    do."""
    tokens = tokenizer.encode("a", add_special_tokens=False).tokens
    return bool(tokens) and tokens[0].startswith(_SPACE_MARKS)


def _token_pairs(name: str, pairs: Sequence[Pair], pieces: dict[str, list[int]]) -> TokenPairs:
    places = [
        place for place, pair in enumerate(pairs) if pair.word1 in pieces and pair.word2 in pieces
    ]
    kept = [pairs[place] for place in places]
    used = sorted({word for pair in kept for word in pair[:2]})
    index = {word: number for number, word in enumerate(used)}
    lengths = [len(pieces[word]) for word in used]
    tokens = [token for word in used for token in pieces[word]]
    starts = np.cumsum([0, *lengths[:-1]], dtype=np.int64)[: len(used)]
    words = [[index[pair.word1], index[pair.word2]] for pair in kept]
    ratings = [pair.rating for pair in kept]
    # Without a pair, the arrays are empty and keep their dimensions.
    return TokenPairs(
        name,
        np.array(tokens, dtype=np.int64),
        starts,
        np.array(words, dtype=np.int64).reshape(-1, 2),
        np.array(ratings, dtype=np.float64),
        np.array(places, dtype=np.int64),
        len(pairs),
    )


MIN_PAIRS = 3  # two points always correlate perfectly
COSINE, DOT = "cosine", "dot"
CORRELATIONS = {"pearson": (pearson, pearson_resamples), "spearman": (spearman, spearman_resamples)}


def word_vectors(embeddings_VD: NDArray[np.float64], pairs: TokenPairs) -> NDArray[np.float64]:
    """Return the vector of each word (W, D): the mean embedding of its pieces."""
    if not len(pairs.starts):
        return np.empty((0, embeddings_VD.shape[1]))
    n_pieces_W = np.diff([*pairs.starts, len(pairs.pieces)])
    vectors_WD: NDArray[np.float64] = np.add.reduceat(
        embeddings_VD[pairs.pieces], pairs.starts, axis=0
    )
    return vectors_WD / n_pieces_W[:, None]


def similarities(
    embeddings_VD: NDArray[np.float64], pairs: TokenPairs
) -> dict[str, NDArray[np.float64]]:
    """Return cosine and dot product of each pair (P,); the cosine with a vector of zeros is NaN."""
    vectors_WD = word_vectors(embeddings_VD, pairs)
    left_PD, right_PD = vectors_WD[pairs.words[:, 0]], vectors_WD[pairs.words[:, 1]]
    dot_P = np.einsum("pd,pd->p", left_PD, right_PD)
    norms_P = np.linalg.norm(left_PD, axis=1) * np.linalg.norm(right_PD, axis=1)
    return {
        COSINE: np.divide(dot_P, norms_P, out=np.full_like(dot_P, math.nan), where=norms_P > 0),
        DOT: dot_P,
    }


def set_correlations(embeddings_VD: NDArray[np.float64], pairs: TokenPairs) -> dict[str, float]:
    """Return the correlations of a set by name; NaN with fewer than 3 pairs, a zero vector or no
    variance."""
    return correlations_of(similarities(embeddings_VD, pairs), pairs.ratings)


def correlations_of(
    found: dict[str, NDArray[np.float64]], ratings_P: NDArray[np.float64]
) -> dict[str, float]:
    """Return the correlations of similarities with ratings by name; see
    ``set_correlations``."""
    enough = len(ratings_P) >= MIN_PAIRS
    correlations = {}
    for kind, values_P in found.items():
        for name, (correlation, _) in CORRELATIONS.items():
            value = correlation(values_P, ratings_P) if enough else math.nan
            correlations[f"{name}_{kind}"] = value
    return correlations


def resampled_correlations(
    found: dict[str, NDArray[np.float64]], pairs: TokenPairs, correlations: dict[str, float]
) -> dict[str, NDArray[np.float64]]:
    """Return each correlation in each resample of the pairs (B,), NaN where the correlation itself
    is.

    The resamples depend on the set's name and number of pairs only, so those of two models are the
    same.
    """
    counts_BP = resamples(pairs.n_pairs, zlib.crc32(pairs.name.encode()))
    drawn = {}
    for name, value in correlations.items():
        correlation, _, kind = name.partition("_")
        if math.isnan(value):
            drawn[name] = np.full(len(counts_BP), math.nan)
        else:
            drawn[name] = CORRELATIONS[correlation][1](found[kind], pairs.ratings, counts_BP)
    return drawn


def r_bar(correlations: Sequence[float]) -> float:
    """Return 100 times the unweighted mean of the sets' correlations; NaN if one of them is, or if
    there is none."""
    return 100 * math.fsum(correlations) / len(correlations) if correlations else math.nan


def r_bar_of(embeddings_VD: NDArray[np.float64], sets: Sequence[TokenPairs]) -> float:
    """Return only ``r_bar``."""
    return r_bar([set_correlations(embeddings_VD, pairs)["pearson_cosine"] for pairs in sets])


def word_similarity_rows(
    embeddings_VD: NDArray[np.float64],
    sets: Sequence[TokenPairs],
    subword_sets: Sequence[TokenPairs],
) -> tuple[list[ResultRow], list[str]]:
    """Return the rows of all sets and of ``r_bar``, and the reasons for every NaN among them.

    The intervals are percentiles over the pairs, for ``r_bar`` over those of all sets, which are
    drawn independently. They are of the sets of single tokens only.
    """
    rows: list[ResultRow] = []
    reasons = [] if sets else ["r_bar: there are no word-similarity sets"]
    cosines, cosines_SB = [], []
    for pairs in sets:
        found = similarities(embeddings_VD, pairs)
        correlations = correlations_of(found, pairs.ratings)
        drawn = resampled_correlations(found, pairs, correlations)
        cosines.append(correlations["pearson_cosine"])
        cosines_SB.append(drawn["pearson_cosine"])
        rows += _rows_of_pairs(pairs.name, pairs)
        for name, value in correlations.items():
            low, high = interval(drawn[name])
            ends = {name: value, f"{name}_low": low, f"{name}_high": high}
            rows += [row(pairs.name, metric, number) for metric, number in ends.items()]
        reasons += _reasons(pairs.name, pairs, correlations, "are single tokens")
    # The mean over the sets is resampled as they are: independently, one draw of each.
    low, high = interval(100 * np.mean(cosines_SB, axis=0)) if sets else (math.nan, math.nan)
    rows.append(row("word_similarity", "r_bar", r_bar(cosines)))
    rows += [row("word_similarity", "r_bar_low", low), row("word_similarity", "r_bar_high", high)]
    # Words of several pieces are measured apart, so that these numbers stay the paper's.
    cosines = []
    for pairs in subword_sets:
        task, correlations = pairs.name + SUBWORDS, set_correlations(embeddings_VD, pairs)
        cosines.append(correlations["pearson_cosine"])
        rows += _rows_of_pairs(task, pairs)
        rows += [row(task, name, value) for name, value in correlations.items()]
        reasons += _reasons(task, pairs, correlations, "have known words")
    rows.append(row("word_similarity" + SUBWORDS, "r_bar", r_bar(cosines)))
    return rows, reasons


def _rows_of_pairs(task: str, pairs: TokenPairs) -> list[ResultRow]:
    return [row(task, "n_pairs", pairs.n_pairs), row(task, "coverage", pairs.coverage)]


def _reasons(task: str, pairs: TokenPairs, correlations: dict[str, float], kept: str) -> list[str]:
    if pairs.n_pairs < MIN_PAIRS:
        return [f"{task}: {pairs.n_pairs} of {pairs.n_read} pairs {kept}, {MIN_PAIRS} are needed"]
    if any(math.isnan(value) for value in correlations.values()):
        return [
            f"{task}: an embedding is zero or not finite, or similarities or ratings are constant"
        ]
    return []
