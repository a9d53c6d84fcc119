"""The words of word-similarity sets as tokens of a tokenizer: single tokens, or pieces of subword tokenizers.

P: kept pairs    W: words    S: pieces of all words
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.evaluation.pairs import Pair

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
    """Where the pieces of each word begin; shape (W,)."""
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
