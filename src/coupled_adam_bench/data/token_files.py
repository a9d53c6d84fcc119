"""Files of token ids in the format of llm.c and modded-nanogpt, which become token bins as they
are.

A file is 256 int32, of which the first are magic number, version and number of tokens, and then the
tokens as uint16, all little-endian. An end-of-text token stands before each document
(``data/fineweb.py`` of modded-nanogpt).
"""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coupled_adam_bench.data.bins import Bin, Meta
from coupled_adam_bench.data.check import TOKENIZER
from coupled_adam_bench.data.tokenizers import load_encoder
from coupled_adam_bench.store.files import atomic_path
from coupled_adam_bench.study.plan.inputs import token_files
from coupled_adam_bench.study.settings import BinsSource, Study

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
            " by data.source.train and data.source.val"
        )
    size, expected = path.stat().st_size, HEADER_BYTES + DTYPE.itemsize * int(header[2])
    if size != expected:
        raise ValueError(
            f"paths.text: {path} has {size:,} bytes, but {header[2]:,} tokens take {expected:,};"
            " fetch it"
        )
    return np.memmap(path, DTYPE, "r", HEADER_BYTES, (int(header[2]),))


def copy_token_files(study: Study, data_id: str, out: Path) -> Meta:
    """Write the bins of a study's token files to ``out`` and return their description."""
    source = study.data.source
    assert isinstance(source, BinsSource)
    paths = dict(token_files(source, study.paths.text[0]))
    if absent := sorted(source.sha256.keys() - paths.keys()):
        raise ValueError(
            f"data.source.sha256: {absent[0]} must have {source.sha256[absent[0]]}, but there is no"
            f" such file in {study.paths.text[0]}; fetch it again"
        )
    held_out = [path for name, path in paths.items() if Path(name).match(source.val)]
    train = [path for path in paths.values() if path not in held_out]
    if not train or len(held_out) != 1:
        raise ValueError(
            f"paths.text: {study.paths.text[0]} has {len(train)} files {source.train!r} and"
            f" {len(held_out)} {source.val!r}, but data.source needs at least one to train on and"
            " one that is held out"
        )
    val = _TokenFile(held_out[0])
    # The last token that is predicted needs the one before it, so val has one token more.
    cut = source.val_tokens + 1
    encoder = load_encoder(out / TOKENIZER)
    parts = {
        "train": [(file, file.tokens) for file in map(_TokenFile, train)],
        "val": [(val, val.tokens[:cut])],
        "test": [(val, val.tokens[cut:])],
    }
    splits = {
        split: _write(pieces, out / f"{split}.bin", encoder.n_vocab, encoder.eot_id)
        for split, pieces in parts.items()
    }
    # The files are hashed while they are copied, since a second reading of them takes as long.
    read = {
        file.path.name: file.checksum.hexdigest() for pieces in parts.values() for file, _ in pieces
    }
    for name, stated in source.sha256.items():
        if read[name] != stated:
            raise ValueError(
                f"data.source.sha256: {name} must have {stated}, but it is {read[name]}; fetch it"
                " again"
            )
    return Meta(
        data_id=data_id,
        vocab_size=study.data.vocab_size,
        n_vocab=encoder.n_vocab,
        eot_id=encoder.eot_id,
        dtype=DTYPE.str,
        tokenizer=study.data.tokenizer,
        splits=splits,
        source=source.model_dump() | {"n_files": len(paths)},
    )


class _TokenFile:
    """A file of tokens that is hashed while it is copied, from its first token to its last."""

    def __init__(self, path: Path) -> None:
        self.path, self.tokens = path, map_tokens(path)
        self.checksum = sha256(np.fromfile(path, np.uint8, HEADER_BYTES).data)


def _write(
    pieces: Sequence[tuple[_TokenFile, Tokens]], file: Path, n_vocab: int, eot_id: int
) -> Bin:
    """Write the tokens of one or more files, or a part of one, to a bin."""
    checksum, n_tokens, n_documents = sha256(), 0, 0
    with atomic_path(file) as temporary, temporary.open("wb") as target:
        for source, tokens in pieces:
            for start in range(0, len(tokens), _CHUNK_TOKENS):
                chunk: npt.NDArray[Any] = np.array(tokens[start : start + _CHUNK_TOKENS])
                if chunk.max() >= n_vocab:
                    raise ValueError(
                        f"data.tokenizer: it has {n_vocab:,} tokens, but a file has token"
                        f" {chunk.max()}"
                    )
                n_tokens += len(chunk)
                n_documents += int((chunk == eot_id).sum())
                checksum.update(chunk.data)
                source.checksum.update(chunk.data)
                target.write(chunk.data)
    return Bin(file.name, n_tokens, n_documents, checksum.hexdigest())
