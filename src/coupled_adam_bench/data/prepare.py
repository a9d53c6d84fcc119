"""From a study's source to token bins: split, tokenize, and put together, in parallel and resumable."""

import errno
import shutil
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from coupled_adam_bench.config import SyntheticSource, Training
from coupled_adam_bench.data.bins import META, SPLITS, TOKENIZER, UNIGRAM, Bin, Meta, load_meta, token_dtype
from coupled_adam_bench.data.shards import Shard, ShardJob, make_shards, shard_file, shards_dir
from coupled_adam_bench.data.sources import Corpus
from coupled_adam_bench.data.synthetic import language
from coupled_adam_bench.data.synthetic_sets import write_evaluation_sets
from coupled_adam_bench.data.tokenizers import load_encoder, save_tokenizer
from coupled_adam_bench.files import atomic_path, write_json
from coupled_adam_bench.plan import Part
from coupled_adam_bench.progress import Progress

SHARD_CHARACTERS = 8 * 2**20
"""Text of a shard; the bins do not depend on it."""
_COPY_BYTES = 2**24


def prepare(part: Part, out: Path, workers: int) -> None:
    """Write the part's data to ``out``: token bins, ``unigram.npy``, tokenizer, evaluation sets and ``meta.json``.

    ``unigram.npy`` is int64[vocab_size], how often each token is in train. Everything is bit for bit the same for any
    number of ``workers``. If interrupted, the next call takes over the finished shards in ``out/shards``; complete data
    is left as it is. Raises ``ValueError`` for unfit input or a split too small to train on, ``OSError`` with advice if
    the disk is full.
    """
    try:
        if not _is_complete(part, out):
            _prepare(part, out, workers)
        shutil.rmtree(shards_dir(out), ignore_errors=True)
    except OSError as error:
        # A full disk, a quota, a limit on the size of files.
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(
                error.errno,
                f"no space left for {out} (needs about twice the size of the bins) or for temporary files in "
                f"{tempfile.gettempdir()}; free some and run again: finished parts are kept",
            ) from error
        raise


def _is_complete(part: Part, out: Path) -> bool:
    """Say whether ``out`` has the part's data, judged by ``meta.json``, which is written last, and the bins' sizes."""
    if not (out / META).is_file():
        return False
    meta = load_meta(out)
    sizes = {out / split.file: split.n_tokens * np.dtype(meta.dtype).itemsize for split in meta.splits.values()}
    return meta.data_id == part.data_id and all(p.is_file() and p.stat().st_size == size for p, size in sizes.items())


def _prepare(part: Part, out: Path, workers: int) -> None:
    study = part.study
    source = study.data.source
    out.mkdir(parents=True, exist_ok=True)
    (out / META).unlink(missing_ok=True)
    for leftover in out.rglob(".*.tmp"):  # of a process that was killed while it wrote
        leftover.unlink()

    words = None
    facts: dict[str, Any] = source.model_dump()
    if isinstance(source, SyntheticSource):
        words = language(source).names
        write_evaluation_sets(language(source), out)
    save_tokenizer(study, words, out / TOKENIZER)

    shards: list[Shard] = []
    corpus = Corpus(study)
    total = source.n_tokens if isinstance(source, SyntheticSource) else None
    n_documents = n_kept = 0
    with Progress(total, "token", f"prepare {part.data_id}") as progress:
        for shard, is_new in make_shards(_jobs(part, out, corpus), workers):
            shards.append(shard)
            n_documents += sum(shard.n_documents)
            n_kept += not is_new
            progress.update(sum(shard.n_tokens) - sum(shard.n_documents), documents=n_documents, parts_kept=n_kept)
    if total is None:
        facts |= {"n_files": corpus.n_files, "n_empty_documents": corpus.n_empty}

    _check_sizes(shards, study.training)
    bins = {split: _assemble(split, shards, out, study.data.vocab_size) for split in SPLITS}
    encoder = load_encoder(study.data.tokenizer, out / TOKENIZER)
    meta = Meta(
        data_id=part.data_id,
        vocab_size=study.data.vocab_size,
        n_vocab=encoder.n_vocab,
        eot_id=encoder.eot_id,
        dtype=token_dtype(study.data.vocab_size).str,
        tokenizer=study.data.tokenizer,
        splits=bins,
        source=facts,
    )
    write_json(out / META, meta.to_json())


def _jobs(part: Part, out: Path, corpus: Corpus) -> Iterator[ShardJob]:
    """Cut the source into the jobs of its shards: the same for any number of workers and after any restart."""
    data = part.study.data
    if isinstance(data.source, SyntheticSource):
        for index in range(language(data.source).n_shards):
            yield ShardJob(part.data_id, data, out, index)
        return
    index, texts, n_characters = 0, [], 0
    for text in corpus:
        texts.append(text)
        n_characters += len(text)
        if n_characters >= SHARD_CHARACTERS:
            yield ShardJob(part.data_id, data, out, index, tuple(texts))
            index, texts, n_characters = index + 1, [], 0
    if texts:
        yield ShardJob(part.data_id, data, out, index, tuple(texts))


def _check_sizes(shards: list[Shard], training: Training) -> None:
    """Raise ``ValueError`` if a split has no window of ``seq_len`` inputs and their targets."""
    n_tokens = np.array([shard.n_tokens for shard in shards]).sum(axis=0).tolist()
    n_documents = np.array([shard.n_documents for shard in shards]).sum(axis=0).tolist()
    for split, tokens, documents in zip(SPLITS, n_tokens, n_documents, strict=True):
        if tokens < training.seq_len + 1:
            advice = "give more text" if split == "train" else f"raise data.split.{split}_fraction, or give more text"
            raise ValueError(
                f"data.split: {split} has {tokens} tokens in {documents} of {sum(n_documents)} documents, but needs "
                f"training.seq_len + 1 = {training.seq_len + 1}; {advice}"
            )


def _assemble(split: str, shards: list[Shard], out: Path, vocab_size: int) -> Bin:
    """Write the bin of ``split`` from its parts in all shards, and for train the counts of its tokens."""
    place = SPLITS.index(split)
    dtype = token_dtype(vocab_size)
    file = out / f"{split}.bin"
    checksum = sha256()
    counts = np.zeros(vocab_size, dtype=np.int64)
    with atomic_path(file) as temporary, temporary.open("wb") as target:
        for index, shard in enumerate(shards):
            with shard_file(out, index).open("rb") as part:
                part.seek(sum(shard.n_tokens[:place]) * dtype.itemsize)
                n_left = shard.n_tokens[place] * dtype.itemsize
                while n_left:
                    chunk = part.read(min(n_left, _COPY_BYTES))
                    assert chunk, "a shard is shorter than its record says"
                    target.write(chunk)
                    checksum.update(chunk)
                    counts += np.bincount(np.frombuffer(chunk, dtype), minlength=vocab_size)
                    n_left -= len(chunk)
    if split == "train":
        with atomic_path(out / UNIGRAM) as temporary, temporary.open("wb") as target:
            np.save(target, counts)
    return Bin(
        file.name,
        n_tokens=int(counts.sum()),
        n_documents=sum(shard.n_documents[place] for shard in shards),
        sha256=checksum.hexdigest(),
    )
