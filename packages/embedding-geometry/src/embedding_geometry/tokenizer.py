"""Reads tokenizers as they turn a text into all its tokens, and counts the tokens of texts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

from embedding_geometry.json_file import read_object
from embedding_geometry.user_files import check_no_pointer

_BLOCK_CHARACTERS = 2**20


def read_tokenizer(file: Path) -> Tokenizer:
    """Read anybody's ``tokenizer.json`` as ``whole_text`` leaves it; ``ValueError`` if it
    cannot be read."""
    return _parsed(read_object(file), str(file))


def whole_text(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer that turns a text into all its tokens, and always into the same.

    Tokenizers keep truncation, padding and a post-processor from their training, which would cut a
    text, or add tokens to it. The dropout of a BPE draws another split of each text.
    """
    return _parsed(json.loads(tokenizer.to_str()), "the tokenizer")


def _parsed(values: dict[str, Any], name: str) -> Tokenizer:
    values |= {"truncation": None, "padding": None, "post_processor": None}
    if isinstance(values.get("model"), dict) and "dropout" in values["model"]:
        values["model"]["dropout"] = None
    try:
        return Tokenizer.from_str(json.dumps(values))
    except Exception as error:  # the library raises no other type
        raise ValueError(f"{name}: the library 'tokenizers' cannot read it: {error}") from None


def count_tokens(
    files: Sequence[Path], tokenizer: Tokenizer, n_vocab: int
) -> tuple[NDArray[np.int64], int]:
    """Return how often each token (n_vocab,) is in the text of files, and how many words have no
    token.

    Files are read in blocks of whole lines; of JSON the field ``text`` of each line.
    ``ValueError`` for a file that is not UTF-8 or cannot be split into tokens, or if there are
    none.
    """
    tokenizer = _with_unknown_words(tokenizer, n_vocab)
    counts = np.zeros(n_vocab + 1, dtype=np.int64)
    for file in files:
        check_no_pointer(file)
        try:
            with file.open(encoding="utf-8-sig") as lines:
                while block := lines.readlines(_BLOCK_CHARACTERS):
                    for encoding in tokenizer.encode_batch_fast(
                        _texts(file, block), add_special_tokens=False
                    ):
                        counts += np.bincount(
                            np.array(encoding.ids, dtype=np.int64), minlength=n_vocab + 1
                        )
        except UnicodeDecodeError as error:
            raise ValueError(f"--text: {file} is not UTF-8 ({error})") from None
        except (OSError, RowError):
            raise
        except Exception as error:  # the library raises bare Exceptions
            raise ValueError(
                f"--text: {file} has what the model's tokenizer has no token for ({error})"
            ) from None
    if not counts[:n_vocab].any():
        raise ValueError(
            f"--text: no tokens of the model's tokenizer in {', '.join(map(str, files))}"
        )
    return counts[:n_vocab], int(counts[n_vocab])


class RowError(ValueError):
    """Says that a line of JSON has no text."""


def _texts(file: Path, lines: Sequence[str]) -> list[str]:
    """Return the texts in some lines of a file."""
    if file.suffix.lower() not in (".jsonl", ".ndjson", ".json"):
        return ["".join(lines)]
    texts = []
    for line in filter(str.strip, lines):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise RowError(f"--text: {file} has a line that is not JSON ({error})") from None
        text = row.get("text") if isinstance(row, dict) else None
        if not isinstance(text, str):
            raise RowError(
                f"--text: {file} has a line without a text in its field 'text'"
                f" ({line.strip()[:80]!r}); rename the field, or write the text into a .txt file"
            )
        texts.append(text)
    return texts


def _with_unknown_words(tokenizer: Tokenizer, n_vocab: int) -> Tokenizer:
    """Return a tokenizer of words that has the token ``n_vocab`` for unknown ones, which it would
    refuse."""
    model = tokenizer.model
    vocab = tokenizer.get_vocab(with_added_tokens=False)
    if not isinstance(model, models.WordLevel) or model.unk_token in vocab:
        return tokenizer
    unknown = f"{max(vocab, key=len, default='')}?"  # longer than all others
    completed = Tokenizer.from_str(tokenizer.to_str())
    completed.model = models.WordLevel(vocab | {unknown: n_vocab}, unknown)
    return completed
