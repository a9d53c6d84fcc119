"""Measures how embeddings agree with human ratings of word pairs whose two words are single tokens.

V: rows of the embedding matrix    D: width    P: kept pairs
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.embeddings.correlation import pearson, spearman
from coupled_adam_bench.evaluation.pairs import Pair
from coupled_adam_bench.evaluation.record import ResultRow, row

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MIN_PAIRS = 3  # two points always correlate perfectly


@dataclass(frozen=True)
class TokenPairs:
    """A word-similarity set as token ids."""

    name: str
    tokens: NDArray[np.int64]
    """Shape (P, 2)."""
    ratings: NDArray[np.float64]
    """Shape (P,)."""
    n_read: int
    """The number of pairs in the file, with those that were dropped."""


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
    words = sorted({word for pair in pairs for word in pair[:2]})
    if word_level:
        tokens = {word: tokenizer.token_to_id(word) for word in words}
    else:
        space = " " if leading_space else ""
        encodings = tokenizer.encode_batch([space + word for word in words], add_special_tokens=False)
        tokens = {word: e.ids[0] if len(e.ids) == 1 else None for word, e in zip(words, encodings, strict=True)}
    kept = [
        (first, second, pair.rating)
        for pair in pairs
        if (first := tokens[pair.word1]) is not None and (second := tokens[pair.word2]) is not None
    ]
    return TokenPairs(
        name,
        np.array([[first, second] for first, second, _ in kept], dtype=np.int64).reshape(-1, 2),
        np.array([rating for _, _, rating in kept], dtype=np.float64),
        len(pairs),
    )


def set_correlations(embeddings_VD: NDArray[np.float64], pairs: TokenPairs) -> dict[str, float]:
    """Return the correlations of a set by name; NaN with fewer than 3 pairs, a zero vector or no variance."""
    left_PD, right_PD = embeddings_VD[pairs.tokens[:, 0]], embeddings_VD[pairs.tokens[:, 1]]
    dot_P = np.einsum("pd,pd->p", left_PD, right_PD)
    norms_P = np.linalg.norm(left_PD, axis=1) * np.linalg.norm(right_PD, axis=1)
    cosine_P = np.divide(dot_P, norms_P, out=np.full_like(dot_P, math.nan), where=norms_P > 0)
    enough = len(pairs.ratings) >= MIN_PAIRS
    return {
        "pearson_cosine": pearson(cosine_P, pairs.ratings) if enough else math.nan,
        "spearman_cosine": spearman(cosine_P, pairs.ratings) if enough else math.nan,
        "pearson_dot": pearson(dot_P, pairs.ratings) if enough else math.nan,
    }


def r_bar(correlations: Sequence[float]) -> float:
    """Return 100 times the unweighted mean of the sets' correlations; NaN if one of them is, or if there is none."""
    return 100 * math.fsum(correlations) / len(correlations) if correlations else math.nan


def word_similarity_rows(
    embeddings_VD: NDArray[np.float64], sets: Sequence[TokenPairs]
) -> tuple[list[ResultRow], list[str]]:
    """Return the rows of all sets and of ``r_bar``, and the reasons for every NaN among them."""
    rows: list[ResultRow] = []
    reasons = [] if sets else ["r_bar: evaluation.word_similarity has no sets"]
    cosines = []
    for pairs in sets:
        correlations = set_correlations(embeddings_VD, pairs)
        n_pairs = len(pairs.ratings)
        rows += [row(pairs.name, metric, value) for metric, value in correlations.items()]
        rows.append(row(pairs.name, "n_pairs", n_pairs))
        cosines.append(correlations["pearson_cosine"])
        if n_pairs < MIN_PAIRS:
            reasons.append(f"{pairs.name}: {n_pairs} of {pairs.n_read} pairs are single tokens, {MIN_PAIRS} are needed")
        elif any(math.isnan(value) for value in correlations.values()):
            reasons.append(f"{pairs.name}: an embedding is zero or not finite, or similarities or ratings are constant")
    rows.append(row("word_similarity", "r_bar", r_bar(cosines)))
    return rows, reasons
