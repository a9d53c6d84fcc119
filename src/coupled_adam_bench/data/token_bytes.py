"""How many bytes of text each token stands for, read from the tokenizer that the data stage saved.

Three families of tokenizers say it: byte-level ones (GPT-2, Llama 3), those that write spaces as
U+2581 (SentencePiece, Llama 2), and whole words between spaces. Bytes are those that the tokens
spell. Where a tokenizer changes a text or writes it in another way, the text itself has other
bytes: `TokenBytes.spelled` is compared with these. V: tokens of the vocabulary.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.store.files import read_json

_SPACE = "\u2581"
_BYTE_LEVEL_SPACE = "\u0120"  # as GPT-2 writes a space (openai/gpt-2, encoder.py, bytes_to_unicode)
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")  # SentencePiece's way to write a byte

_CHUNK_TOKENS = 2**22

UNKNOWN = -1
"""Stands for the bytes of a token that nobody knows, such as the one for unknown words."""

Ids = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class TokenBytes:
    """Bytes of each token inside a document, and as its first token, where a space before it is not
    of the text.

    Both have shape (V,), with ``UNKNOWN`` for a token whose bytes nobody knows.
    """

    inside: NDArray[np.int64]
    first: NDArray[np.int64]
    eot_id: int

    def of(self, targets: Ids, before: Ids) -> NDArray[np.int64]:
        """Return the bytes of ``targets``, given the tokens ``before`` them, in the same shape;
        end-of-text has 0."""
        return np.where(before == self.eot_id, self.first[targets], self.inside[targets])

    def spelled(self, tokens: Ids) -> int | None:
        """Return the bytes of documents in a row (n_tokens,); None if the bytes of a token are not
        known."""
        total, before = 0, self.eot_id
        for start in range(0, len(tokens), _CHUNK_TOKENS):
            chunk = tokens[start : start + _CHUNK_TOKENS].astype(np.int64)
            found = self.of(chunk, np.concatenate(([before], chunk[:-1])))
            if (found == UNKNOWN).any():
                return None
            total, before = total + int(found.sum()), int(chunk[-1])
        return total


@dataclass(frozen=True)
class _Family:
    """How a family of tokenizers writes text: the bytes of a token, and whether its first space is
    not of the text."""

    n_bytes: Callable[[str], int]
    adds_space: Callable[[str], bool]


def token_bytes(tokenizer: Path, vocab_size: int, eot_id: int) -> TokenBytes:
    """Return the bytes of the tokens of the tokenizer in the folder ``tokenizer``.

    ``ValueError`` if it is of none of the families.
    """
    file = tokenizer / "tokenizer.json"
    values = read_json(file)
    family = _family(file, values)
    model = values["model"]
    unknown = (model.get("unk_token"), model.get("unk_id"))
    inside_V = np.full(vocab_size, UNKNOWN)
    first_V = np.full(vocab_size, UNKNOWN)
    for index, token in _vocabulary(model):
        if token != unknown[0] and index != unknown[1]:
            inside_V[index] = family.n_bytes(token)
            first_V[index] = inside_V[index] - family.adds_space(token)
    for added in values["added_tokens"]:
        n_bytes = UNKNOWN if added["special"] else len(added["content"].encode())
        inside_V[added["id"]] = first_V[added["id"]] = n_bytes
    inside_V[eot_id] = first_V[eot_id] = 0
    return TokenBytes(inside_V, first_V, eot_id)


def _vocabulary(model: dict[str, Any]) -> Iterator[tuple[int, str]]:
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        yield from ((index, token) for token, index in vocab.items())
    else:  # Unigram: tokens with their scores
        yield from ((index, token) for index, (token, _) in enumerate(vocab))


def _parts(values: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Return by type the parts of a step of a tokenizer: one, none, or all parts of a sequence."""
    step = values.get(name) or {"type": "Sequence"}
    if step["type"] != "Sequence":
        return {step["type"]: step}
    parts = [
        part for key in ("normalizers", "pretokenizers", "decoders") for part in step.get(key, ())
    ]
    return {part["type"]: part for part in parts}


def _family(file: Path, values: dict[str, Any]) -> _Family:
    before, decoder = _parts(values, "pre_tokenizer"), _parts(values, "decoder")
    if "ByteLevel" in decoder:
        prepends = before.get("ByteLevel", {}).get("add_prefix_space", False)
        return _Family(len, lambda token: prepends and token.startswith(_BYTE_LEVEL_SPACE))
    # SentencePiece writes a space as U+2581, and a byte that no token has as text such as <0x0A>.
    metaspace = before.get("Metaspace") or decoder.get("Metaspace")
    if metaspace or decoder.get("Replace", {}).get("pattern") == {"String": _SPACE}:
        normalizer = _parts(values, "normalizer")
        always = metaspace is not None and metaspace.get("prepend_scheme", "always") != "never"
        prepends = always or normalizer.get("Prepend", {}).get("prepend") == _SPACE
        has_bytes = values["model"].get("byte_fallback", False)
        return _Family(
            lambda token: (
                1
                if has_bytes and _BYTE_TOKEN.fullmatch(token)
                else len(token.replace(_SPACE, " ").encode())
            ),
            lambda token: prepends and token.startswith(_SPACE),
        )
    # Words have lost the space between them, which is counted with the word after it.
    if set(before) == {"WhitespaceSplit"} and not decoder:
        return _Family(lambda word: len(f" {word}".encode()), lambda _word: True)
    raise ValueError(
        f"{file}: its pre-tokenizer {sorted(before)} and decoder {sorted(decoder)} do not say which"
        " bytes its tokens stand for; bits per byte needs a byte-level tokenizer, one with U+2581"
        " for spaces, or words"
    )
