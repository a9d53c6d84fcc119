"""Token bins: flat files of token ids, their description ``meta.json``, and the windows that a
training step draws."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coupled_adam_bench.data.check import META, Checksum, checksum, checksums_to_json, open_meta
from coupled_adam_bench.data.check import verified_file as verified_file
from coupled_adam_bench.data.check import verified_tree as verified_tree
from coupled_adam_bench.store.files import write_sealed

SPLITS = ("train", "val", "test")
UNIGRAM = "unigram.npy"
_CHUNK_TOKENS = 2**24


@dataclass(frozen=True)
class Bin:
    """One split: a flat file of token ids, in which each document ends with the end-of-text
    token."""

    file: str
    n_tokens: int
    n_documents: int
    sha256: str
    n_bytes: int | None = None
    """Bytes of the documents' text in UTF-8; None if they are not known, for example for files of
    tokens."""


@dataclass(frozen=True)
class Meta:
    """The contents of ``meta.json``."""

    data_id: str
    vocab_size: int
    """Number of rows of the embedding matrix."""
    n_vocab: int
    """Number of tokens of the tokenizer, at most ``vocab_size``."""
    eot_id: int
    dtype: str
    """Type of a token id, ``<u2`` or ``<u4`` (little-endian)."""
    tokenizer: str
    splits: dict[str, Bin]
    source: dict[str, Any]
    """Settings of the source, with the numbers of files that were read, and of what was left
    out."""


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the type of a token id: uint16 for up to 65536 tokens, else uint32; always
    little-endian."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def write_meta(folder: Path, meta: Meta, others: Sequence[Path]) -> None:
    """Write the sealed ``meta.json`` with size and SHA-256 of each bin and of the ``others`` in
    ``folder``."""
    itemsize = np.dtype(meta.dtype).itemsize
    files = {
        split.file: Checksum(split.n_tokens * itemsize, split.sha256)
        for split in meta.splits.values()
    }
    files |= {path.relative_to(folder).as_posix(): checksum(path) for path in others}
    write_sealed(folder / META, asdict(meta) | {"files": checksums_to_json(files)})


def load_meta(folder: Path) -> Meta:
    """Read the ``meta.json`` of prepared data; raise ``ValueError`` if it is missing, damaged or
    has another form."""
    values = open_meta(folder)
    try:
        bins = {split: Bin(**values["splits"][split]) for split in SPLITS}
        return Meta(
            **{key: value for key, value in values.items() if key != "files"} | {"splits": bins}
        )
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{folder / META}: not the description of token bins ({error}); delete it and prepare"
            " again"
        ) from None


def open_tokens(
    folder: Path, split: str, verify: bool = True
) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Map the tokens of ``split`` into memory, shape (n_tokens,), read-only.

    Raises ``ValueError`` if the size or, with ``verify``, the SHA-256 of the file differs from
    ``meta.json``.
    """
    meta = load_meta(folder)
    path = verified_file(folder, meta.splits[split].file, contents=verify)
    return np.memmap(path, dtype=meta.dtype, mode="r")


def document_ends(tokens: npt.NDArray[np.integer[Any]], eot_id: int) -> npt.NDArray[np.int64]:
    """Return where the end-of-text tokens are, shape (n_documents,)."""
    firsts = range(0, len(tokens), _CHUNK_TOKENS)
    chunks = [
        first + np.flatnonzero(tokens[first : first + _CHUNK_TOKENS] == eot_id) for first in firsts
    ]
    return np.concatenate([np.zeros(0, np.int64), *chunks])


def count_starts(n_tokens: int, seq_len: int) -> int:
    """Return the number of positions at which a window of ``seq_len`` inputs and their targets can
    start.

    Raises ``ValueError`` if there are fewer tokens than one window has.
    """
    if n_tokens <= seq_len:
        raise ValueError(
            f"training.seq_len: {seq_len}, but a window needs {seq_len + 1} tokens and there are"
            f" {n_tokens}"
        )
    return n_tokens - seq_len


def philox(seed: int, index: int) -> np.random.Philox:
    """Return random stream ``index`` of ``seed``; streams are independent and need not be drawn in
    order.

    Philox is a counter-based generator. The key is the seed and the index a high word of the
    counter, so each index has its own stream of 2^129 numbers (Salmon et al. 2011).
    """
    return np.random.Philox(key=seed % 2**64, counter=[0, 0, index, 0])


def sample_offsets(
    n_tokens: int, seq_len: int, batch_sequences: int, seed: int, step: int
) -> npt.NDArray[np.int64]:
    """Return the starts of the windows of one training step, shape (batch_sequences,), uniform with
    replacement.

    A window is ``seq_len`` inputs and their targets, one token further: ``seq_len + 1`` tokens.
    Start i is number i of the Philox stream of (seed, step), so it does not depend on batch size,
    micro-batch size or earlier draws. Raises ``ValueError`` if there are fewer tokens than one
    window has.
    """
    n_starts = count_starts(n_tokens, seq_len)
    # The bias of the modulo is below n_starts / 2^64.
    return (philox(seed, step).random_raw(batch_sequences) % np.uint64(n_starts)).astype(np.int64)
