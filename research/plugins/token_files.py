"""Files of token ids in the format of llm.c and modded-nanogpt, as a source (docs/plugins.md).

    paths: {text: data/fineweb10B}
    data:
      source: {kind: own, path: research.plugins.token_files.TokenFiles}

A file is 256 int32, of which the first are magic number, version and number of tokens, and then the
tokens as uint16, all little-endian. An end-of-text token stands before each document
(``data/fineweb.py`` of modded-nanogpt).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coupled_adam_bench.data.plug_ins import SourcePlugIn

MAGIC, VERSION = 20240520, 1
HEADER_BYTES = 256 * 4
DTYPE = np.dtype("<u2")
_CHUNK_TOKENS = 2**24

Tokens = npt.NDArray[np.uint16]


def map_tokens(path: Path) -> Tokens:
    """Map the tokens of a file into memory; ``ValueError`` if it has another format or another size
    than it says."""
    header = np.fromfile(path, "<i4", 3)
    if tuple(header[:2]) != (MAGIC, VERSION):
        raise ValueError(
            f"paths.text: {path} begins with {header[:2].tolist()}, but a file of tokens begins"
            f" with the magic number {MAGIC} and version {VERSION}; fetch it again, or leave it out"
            " by the arguments train and val of data.source"
        )
    size, expected = path.stat().st_size, HEADER_BYTES + DTYPE.itemsize * int(header[2])
    if size != expected:
        raise ValueError(
            f"paths.text: {path} has {size:,} bytes, but {header[2]:,} tokens take {expected:,};"
            " fetch it again"
        )
    return np.memmap(path, DTYPE, "r", HEADER_BYTES, (int(header[2]),))


class TokenFiles(SourcePlugIn):
    """The files whose names match ``train``, in the order of their names, and the one that matches
    ``val``, which is held out.

    Of its tokens the split val predicts the first ``val_tokens``, as modded-nanogpt does, and test
    has the rest.
    """

    contract = 1

    def __init__(
        self,
        files: Sequence[Path],
        train: str = "fineweb_train_*.bin",
        val: str = "fineweb_val_*.bin",
        val_tokens: int = 20 * 524_288,
    ) -> None:
        self.val_tokens = val_tokens
        self.held_out = [path for path in files if path.match(val)]
        self.train = [path for path in files if path.match(train) and path not in self.held_out]
        if not self.train or len(self.held_out) != 1:
            raise ValueError(
                f"paths.text has {len(self.train)} files {train!r} and {len(self.held_out)}"
                f" {val!r}, but must have at least one to train on and one that is held out"
            )

    def tokens(self, split: str) -> Iterator[Tokens]:
        """Yield the tokens of a split in pieces."""
        if split == "train":
            for path in self.train:
                yield from _pieces(map_tokens(path))
            return
        (held_out,) = map(map_tokens, self.held_out)
        # The last token that is predicted needs the one before it, so val has one token more.
        cut = self.val_tokens + 1
        yield from _pieces(held_out[:cut] if split == "val" else held_out[cut:])


def _pieces(tokens: Tokens) -> Iterator[Tokens]:
    for start in range(0, len(tokens), _CHUNK_TOKENS):
        yield tokens[start : start + _CHUNK_TOKENS]
