"""Tokenizers as embeddings are measured: words that are single tokens, and counts of a text."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

from coupled_adam_bench.study.base import of


def whole(tokenizer: Tokenizer) -> Tokenizer:
    """Let a tokenizer split whole texts, always in the same way."""
    # Left over from its training, these would cut a text, fill it up, or split it by chance.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if isinstance(tokenizer.model, models.BPE):
        tokenizer.model.dropout = None
    return tokenizer


def read_tokenizer(file: Path) -> Tokenizer:
    """Read anybody's ``tokenizer.json``; ``ValueError`` if the library cannot."""
    with of("--tokenizer"):
        return whole(Tokenizer.from_file(str(file)))


def token_of_each(words: Sequence[str], tokenizer: Tokenizer, space: bool) -> dict[str, int]:
    """Return the token of each word that is a single one; the token of unknown words is none.

    With ``space`` a word follows a space, as in running text.
    """
    if isinstance(tokenizer.model, models.WordLevel):  # which may refuse an unknown word
        found = {word: tokenizer.token_to_id(word) for word in words}
        return {word: token for word, token in found.items() if token is not None}
    model = json.loads(tokenizer.to_str())["model"]
    unknown = model.get("unk_id", tokenizer.token_to_id(model.get("unk_token") or ""))
    # Some tokenizers put the space there by themselves, and two would be another token.
    adds_space = tokenizer.encode("a", add_special_tokens=False).tokens[0].startswith(("▁", "Ġ"))
    before = " " if space and not adds_space else ""
    texts = [before + word for word in words]
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    ids = {word: encoding.ids for word, encoding in zip(words, encodings, strict=True)}
    return {word: own[0] for word, own in ids.items() if len(own) == 1 and own != [unknown]}


def count_tokens(texts: Iterable[str], tokenizer: Tokenizer, n_rows: int) -> NDArray[np.int64]:
    """Return how often each token is in the texts, shape (n_rows,)."""
    counts_V = np.zeros(n_rows, np.int64)
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        counts_V += np.bincount(np.array(ids, np.int64), minlength=n_rows)
    return counts_V
