"""Measures how embeddings agree with human ratings of word pairs, whose words are single tokens or several pieces.

V: rows of the embedding matrix    D: width    P: kept pairs    W: words    S: pieces of all words    B: resamples
"""

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.embeddings.correlation import (
    interval,
    pearson,
    pearson_resamples,
    resamples,
    spearman,
    spearman_resamples,
)
from coupled_adam_bench.evaluation.pairs import Pair
from coupled_adam_bench.store.stored import ResultRow, row
from coupled_adam_bench.study.catalog.names import SUBWORDS

if TYPE_CHECKING:
    from tokenizers import Tokenizer


_SPACE_MARKS = ("Ġ", "▁", " ")
"""Beginnings of a token that stands for a space and a word, in byte-level and in SentencePiece vocabularies."""


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


def load_tokenizer(folder: Path) -> "Tokenizer":
    """Read ``tokenizer.json`` in ``folder``; ``ValueError`` if it is not there."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"{path} does not exist; run the data stage")
    return Tokenizer.from_file(str(path))


def single_token_pairs(
    name: str, pairs: Sequence[Pair], tokenizer: "Tokenizer", word_level: bool, leading_space: bool
) -> TokenPairs:
    """Keep the pairs whose two words are single tokens.

    With ``leading_space`` subword tokenizers are given the word behind a space, as it stands in running text: without
    it GPT-2 keeps 641 of the 2,486 pairs of MEN. A ``word_level`` vocabulary is asked for the word itself.
    """
    pieces = _pieces(pairs, tokenizer, word_level, leading_space)
    return _token_pairs(name, pairs, {word: ids for word, ids in pieces.items() if len(ids) == 1})


def subword_pairs(
    name: str, pairs: Sequence[Pair], tokenizer: "Tokenizer", word_level: bool, leading_space: bool
) -> TokenPairs:
    """Keep the pairs whose two words are made of tokens at all, so that a byte-level tokenizer keeps all.

    The arguments are those of :func:`single_token_pairs`.
    """
    pieces = _pieces(pairs, tokenizer, word_level, leading_space)
    return _token_pairs(name, pairs, {word: ids for word, ids in pieces.items() if ids})


def _pieces(
    pairs: Sequence[Pair], tokenizer: "Tokenizer", word_level: bool, leading_space: bool
) -> dict[str, list[int]]:
    """Return the tokens of each word, none of a word with a part that the vocabulary does not know."""
    words = sorted({word for pair in pairs for word in pair[:2]})
    if word_level:
        ids = {word: tokenizer.token_to_id(word) for word in words}
        return {word: [] if found is None else [found] for word, found in ids.items()}
    unknown = _unknown_id(tokenizer)
    space = " " if leading_space and not _adds_space(tokenizer) else ""
    encodings = tokenizer.encode_batch([space + word for word in words], add_special_tokens=False)
    return {word: [] if unknown in e.ids else e.ids for word, e in zip(words, encodings, strict=True)}


def _unknown_id(tokenizer: "Tokenizer") -> int | None:
    """Return the token that stands for all text that the vocabulary does not know; byte-level ones have none."""
    from tokenizers import models

    if isinstance(tokenizer.model, models.Unigram):  # it shows its unknown token only here
        found: int | None = json.loads(tokenizer.to_str())["model"]["unk_id"]
        return found
    name = getattr(tokenizer.model, "unk_token", None)
    return None if name is None else tokenizer.token_to_id(name)


def _adds_space(tokenizer: "Tokenizer") -> bool:
    """Tell whether the tokenizer itself puts a space before a text, as those of SentencePiece can do."""
    tokens = tokenizer.encode("a", add_special_tokens=False).tokens
    return bool(tokens) and tokens[0].startswith(_SPACE_MARKS)


def _token_pairs(name: str, pairs: Sequence[Pair], pieces: dict[str, list[int]]) -> TokenPairs:
    places = [place for place, pair in enumerate(pairs) if pair.word1 in pieces and pair.word2 in pieces]
    kept = [pairs[place] for place in places]
    used = sorted({word for pair in kept for word in pair[:2]})
    index = {word: number for number, word in enumerate(used)}
    lengths = [len(pieces[word]) for word in used]
    return TokenPairs(
        name,
        np.array([token for word in used for token in pieces[word]], dtype=np.int64),
        np.cumsum([0, *lengths[:-1]], dtype=np.int64)[: len(used)],
        np.array([[index[pair.word1], index[pair.word2]] for pair in kept], dtype=np.int64).reshape(-1, 2),
        np.array([pair.rating for pair in kept], dtype=np.float64),
        np.array(places, dtype=np.int64),
        len(pairs),
    )


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
