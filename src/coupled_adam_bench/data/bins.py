"""Token bins: flat files of token ids, their description ``meta.json``, and the windows that a training step draws."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coupled_adam_bench.files import read_json, sha256_file

SPLITS = ("train", "val", "test")
META = "meta.json"
UNIGRAM = "unigram.npy"
TOKENIZER = "tokenizer"


@dataclass(frozen=True)
class Bin:
    """One split: a flat file of token ids, documents one after the other, each closed by the end-of-text token."""

    file: str
    n_tokens: int
    n_documents: int
    sha256: str


@dataclass(frozen=True)
class Meta:
    """Content of ``meta.json``."""

    data_id: str
    vocab_size: int
    """Rows of the embedding matrix."""
    n_vocab: int
    """Tokens that the tokenizer has, at most ``vocab_size``."""
    eot_id: int
    dtype: str
    """Little-endian: ``<u2`` or ``<u4``."""
    tokenizer: str
    splits: dict[str, Bin]
    source: dict[str, Any]
    """Settings of the source and what was read: files, documents, empty documents skipped."""

    def to_json(self) -> dict[str, Any]:
        """Return the description as a JSON value."""
        return asdict(self)


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the type of a token id: uint16 up to 65536 tokens, uint32 above, little-endian on any machine."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def load_meta(folder: Path) -> Meta:
    """Read the ``meta.json`` of prepared data; ``ValueError`` if it is missing, broken or of another form."""
    path = folder / META
    values = read_json(path)
    try:
        bins = {split: Bin(**values["splits"][split]) for split in SPLITS}
        return Meta(**{**values, "splits": bins})
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: not the description of token bins ({error}); delete it and prepare again") from None


def open_tokens(folder: Path, split: str, verify: bool = True) -> npt.NDArray[np.unsignedinteger[Any]]:
    """Map the tokens of ``split`` into memory, shape (n_tokens,), read-only.

    Size and, with ``verify``, SHA-256 of the file are compared with ``meta.json``; ``ValueError`` if they differ.
    """
    meta = load_meta(folder)
    if split not in meta.splits:
        raise ValueError(f"split: {split!r} is not one of {', '.join(SPLITS)}")
    expected = meta.splits[split]
    path = folder / expected.file
    advice = f"delete {folder} and prepare the data again"
    if not path.is_file():
        raise ValueError(f"{path}: missing; {advice}")
    n_bytes = expected.n_tokens * np.dtype(meta.dtype).itemsize
    if path.stat().st_size != n_bytes:
        raise ValueError(f"{path}: {path.stat().st_size} bytes, but {META} says {n_bytes}; {advice}")
    if verify and (sha256 := sha256_file(path)) != expected.sha256:
        raise ValueError(f"{path}: SHA-256 {sha256}, but {META} says {expected.sha256}: damaged or changed; {advice}")
    return np.memmap(path, dtype=meta.dtype, mode="r")


def count_starts(n_tokens: int, seq_len: int) -> int:
    """Return at how many places a window of ``seq_len`` inputs and their targets can start.

    ``ValueError`` if the tokens are fewer than one window.
    """
    if n_tokens <= seq_len:
        raise ValueError(
            f"training.seq_len: {seq_len}, but a window needs {seq_len + 1} tokens and there are {n_tokens}"
        )
    return n_tokens - seq_len


def philox(seed: int, index: int) -> np.random.Philox:
    """Return stream number ``index`` of ``seed``, independent of all others, without drawing those before it.

    A counter-based generator: the key is the seed, the index is a high word of the counter, and each index has a stream
    of 2^129 numbers of its own (Salmon et al. 2011).
    """
    return np.random.Philox(key=seed % 2**64, counter=[0, 0, index, 0])


def sample_offsets(n_tokens: int, seq_len: int, batch_sequences: int, seed: int, step: int) -> npt.NDArray[np.int64]:
    """Return where the windows of one training step start, shape (batch_sequences,), uniform with replacement.

    A window is ``seq_len`` inputs and, one further, their targets: ``seq_len + 1`` tokens. Position i is number i of
    the Philox stream of (seed, step), so it depends on neither batch nor micro-batch size, nor on earlier draws.
    ``ValueError`` if the tokens are fewer than one window.
    """
    n_starts = count_starts(n_tokens, seq_len)
    # The bias of the remainder is below n_starts / 2^64.
    return (philox(seed, step).random_raw(batch_sequences) % np.uint64(n_starts)).astype(np.int64)
