"""Tokenizers as embeddings are measured: anybody's, and words that are single tokens."""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, models

from coupled_adam_bench.study.base import of


def read_tokenizer(name: Path) -> Tokenizer:
    """Read anybody's ``tokenizer.json``, from a file, a folder or the hub; it splits whole texts,
    always in the same way. ``ValueError`` if the library cannot."""
    file = name / "tokenizer.json" if name.is_dir() else name
    with of("--tokenizer"):
        read = Tokenizer.from_file if file.is_file() else Tokenizer.from_pretrained
        tokenizer = read(str(file))
    # Left over from its training, these would cut a text, fill it up, or split it by chance.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if isinstance(tokenizer.model, models.BPE):
        tokenizer.model.dropout = None
    return tokenizer


def token_of_each(words: Sequence[str], tokenizer: Tokenizer, space: bool) -> dict[str, int]:
    """Return the token of each word that is a single one; the token of unknown words is none.

    With ``space`` a word follows a space, as in running text.
    """
    if isinstance(tokenizer.model, models.WordLevel):  # which may refuse an unknown word
        found = {word: tokenizer.token_to_id(word) for word in words}
        return {word: token for word, token in found.items() if token is not None}
    model = json.loads(tokenizer.to_str())["model"]
    # Unigram names the id of unknown words, BPE and WordPiece name the token.
    unknown = model.get("unk_id", tokenizer.token_to_id(model.get("unk_token") or ""))
    # Some tokenizers put the space there by themselves, and two would be another token.
    adds_space = tokenizer.encode("a", add_special_tokens=False).tokens[0].startswith(("▁", "Ġ"))
    before = " " if space and not adds_space else ""
    texts = [before + word for word in words]
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    ids = {word: encoding.ids for word, encoding in zip(words, encodings, strict=True)}
    return {word: own[0] for word, own in ids.items() if len(own) == 1 and own != [unknown]}
