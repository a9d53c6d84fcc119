"""A source of token ids that a study brings: a class of its own."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coupled_adam_bench.data.bins import SPLITS, Bin, Meta, token_dtype
from coupled_adam_bench.data.check import TOKENIZER
from coupled_adam_bench.data.tokenizers import load_encoder
from coupled_adam_bench.store.files import atomic_path
from coupled_adam_bench.study.plan.inputs import files_of_own_source
from coupled_adam_bench.study.plan.plug_ins import Contract, failing
from coupled_adam_bench.study.settings import OwnSource, Study


class SourcePlugIn(Contract, ABC):
    """A source of a study's own; it is called with the files at ``paths.text``, sorted by name, and
    with the arguments that the study gives."""

    @abstractmethod
    def tokens(self, split: str) -> Iterable[ArrayLike]:
        """Yield the token ids of a split, ``train``, ``val`` or ``test``, in pieces of any
        length."""


def try_source(study: Study) -> None:
    """Import a study's own source; ``ValueError`` names the field if it breaks the contract."""
    source = study.data.source
    if isinstance(source, OwnSource):
        SourcePlugIn.imported("data.source", source, [])


def _pieces(source: SourcePlugIn, split: str, path: str, n_vocab: int) -> Iterator[NDArray[Any]]:
    """Yield what a source gives of a split; ``ValueError`` if it fails or these are no tokens."""
    for tokens in _arrays(source, split, path):
        is_ids = tokens.dtype.kind in "iu" and tokens.ndim == 1
        if not is_ids or tokens.min() < 0 or tokens.max() >= n_vocab:
            raise ValueError(
                f"data.source.path: {path} must give whole numbers from 0 to {n_vocab - 1}, the"
                f" tokens of data.tokenizer, in one dimension; for {split} it gave {tokens!r}"
            )
        yield tokens


def _arrays(source: SourcePlugIn, split: str, path: str) -> Iterator[NDArray[Any]]:
    """Yield what a source gives of a split, as arrays with something in them."""
    with failing(f"data.source.path: {path} fails for {split}"):
        for piece in source.tokens(split):
            tokens = np.asarray(piece)
            if tokens.size:
                yield tokens


def write_own_bins(study: Study, data_id: str, out: Path) -> Meta:
    """Write the bins of a study's own source to ``out`` and return their description."""
    entry = study.data.source
    assert isinstance(entry, OwnSource)
    files: Sequence[Path] = [path for _, path in files_of_own_source(study.paths.text)]
    source = SourcePlugIn.made("data.source", entry, files)
    encoder, dtype = load_encoder(out / TOKENIZER), token_dtype(study.data.vocab_size)
    splits = {}
    for split in SPLITS:
        checksum, n_tokens, n_documents = sha256(), 0, 0
        file = out / f"{split}.bin"
        with atomic_path(file) as temporary, temporary.open("wb") as target:
            for tokens in _pieces(source, split, entry.path, encoder.n_vocab):
                chunk = np.ascontiguousarray(tokens, dtype)
                n_tokens += len(chunk)
                n_documents += int((chunk == encoder.eot_id).sum())
                checksum.update(chunk.data)
                target.write(chunk.data)
        splits[split] = Bin(file.name, n_tokens, n_documents, checksum.hexdigest())
    return Meta(
        data_id=data_id,
        vocab_size=study.data.vocab_size,
        n_vocab=encoder.n_vocab,
        eot_id=encoder.eot_id,
        dtype=dtype.str,
        tokenizer=study.data.tokenizer,
        splits=splits,
        source=entry.model_dump() | {"n_files": len(files)},
    )
