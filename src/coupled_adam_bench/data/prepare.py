"""Prepares the token bins of a study: it splits and tokenizes the documents in parallel and can be
resumed."""

import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coupled_adam_bench.data.bins import SPLITS, UNIGRAM, Bin, Meta, token_dtype, write_meta
from coupled_adam_bench.data.bpe import Bpe, learn_bpe
from coupled_adam_bench.data.check import DAMAGED, META, TOKENIZER, TREES, data_is_damaged
from coupled_adam_bench.data.hub import DISK_FULL
from coupled_adam_bench.data.notes import notes
from coupled_adam_bench.data.plug_ins import write_own_bins
from coupled_adam_bench.data.shards import (
    Shard,
    ShardJob,
    make_shard,
    make_shards,
    read_shard,
    shard_file,
    shards_dir,
)
from coupled_adam_bench.data.sources import Corpus
from coupled_adam_bench.data.synthetic import language
from coupled_adam_bench.data.synthetic_sets import write_evaluation_sets
from coupled_adam_bench.data.tokenizers import load_encoder, save_tokenizer
from coupled_adam_bench.machine.progress import Progress, say
from coupled_adam_bench.store.files import atomic_path, digest, remove
from coupled_adam_bench.store.locks import folder_lock
from coupled_adam_bench.study.plan import cells
from coupled_adam_bench.study.plan.inputs import hidden_in, other_files
from coupled_adam_bench.study.settings import (
    Data,
    FilesSource,
    HubSource,
    OwnSource,
    Study,
    SyntheticSource,
)

SHARD_CHARACTERS = 8 * 2**20
"""Number of characters of text in a shard; the bins do not depend on it."""
_COPY_BYTES = 2**24


def prepare(study: Study, data_id: str, out: Path, workers: int) -> None:
    """Write a study's data to ``out``: token bins, ``unigram.npy``, tokenizer, evaluation sets and
    ``meta.json``.

    ``unigram.npy`` is int64[vocab_size], the count of each token in train. All files are bit for
    bit the same for any number of ``workers``. After an interruption, the next call reuses the
    finished shards in ``out/shards``. Whole data are kept; if a file is damaged or missing, all are
    made again. If another process prepares the same data, this waits for it. Raises ``ValueError``
    for invalid input or a split too small to train on, and ``OSError`` with advice if the disk is
    full.
    """
    try:
        with folder_lock(out):
            if not _is_complete(out):
                _prepare(study, data_id, out, workers)
            remove(shards_dir(out))
    except OSError as error:
        if error.errno in DISK_FULL:
            raise OSError(
                error.errno,
                f"no space left for {out} (needs about twice the size of the bins) or for temporary"
                f" files in {tempfile.gettempdir()}; free some and run again: finished parts are"
                " kept",
            ) from error
        raise


def _is_complete(out: Path) -> bool:
    """Tell whether ``out`` has its data: ``meta.json``, which is written last, and all its
    checksums match."""
    if not (out / META).is_file():
        return False
    if (problem := data_is_damaged(out, below_bytes=math.inf)) is None:
        return True
    say(f"{problem}; made anew")
    return False


def _prepare(study: Study, data_id: str, out: Path, workers: int) -> None:
    source = study.data.source
    _check_files(study, data_id)
    for name in (META, DAMAGED, *TREES):
        remove(out / name)
    for leftover in out.rglob(".*.tmp"):  # left by a process that was killed while it wrote
        leftover.unlink()

    words = None
    small_files: list[Path] = []
    if isinstance(source, SyntheticSource):
        words = language(source).names
        small_files += write_evaluation_sets(language(source), out)
    bpe = learn_bpe(study, data_id, out, workers) if study.data.tokenizer == "bpe" else None
    small_files += save_tokenizer(
        study, words, out / TOKENIZER, None if bpe is None else bpe.merges
    )
    if isinstance(source, OwnSource):
        meta = write_own_bins(study, data_id, out)
    else:
        meta = _make_bins(study, data_id, out, workers, bpe)
    _check_files(study, data_id)
    _check_sizes(meta.splits, study)
    for note in notes(study, asdict(meta)):
        say(f"data {study.data.name}: {note}")
    with atomic_path(out / UNIGRAM) as temporary, temporary.open("wb") as target:
        np.save(target, _count_tokens(out / meta.splits["train"].file, meta))
    write_meta(out, meta, [*small_files, out / UNIGRAM])


def _check_files(study: Study, data_id: str) -> None:
    """Raise ``ValueError`` if the files of a study are not those from which ``data_id`` was
    computed."""
    if cells.data_id(study, cells.data_digest(study)) != data_id:
        raise ValueError(
            f"data {study.data.name}: the files of the text or of the tokenizer have changed since"
            " the study was started; start it again"
        )


def _make_bins(study: Study, data_id: str, out: Path, workers: int, bpe: Bpe | None) -> Meta:
    """Write the token bins and return their description."""
    source = study.data.source
    facts: dict[str, Any] = source.model_dump()
    shards: list[Shard] = []
    corpus = Corpus(study, shards_dir(out) / "hub")
    total = source.n_tokens if isinstance(source, SyntheticSource) else study.data.max_tokens
    n_tokens = n_documents = n_kept = 0
    is_capped = False
    with (
        Progress(total, "tokens", f"prepare {data_id}") as progress,
        closing(make_shards(_jobs(study.data, data_id, out, corpus), workers)) as made,
    ):
        for job, whole, is_new in made:
            shard = whole
            if (
                study.data.max_tokens is not None
                and n_tokens + sum(whole.n_tokens) >= study.data.max_tokens
            ):
                is_capped = True
                shard, is_new = make_shard(replace(job, limit=study.data.max_tokens - n_tokens))
            shards.append(shard)
            n_tokens += sum(shard.n_tokens)
            n_documents += sum(shard.n_documents)
            n_kept += not is_new
            progress.update(
                sum(shard.n_tokens) - sum(shard.n_documents),
                documents=n_documents,
                parts_kept=n_kept,
            )
            if is_capped:
                break
    if corpus.shortfall is not None and not is_capped:
        raise corpus.shortfall
    if not isinstance(source, SyntheticSource):
        # What is read ahead of the last shard depends on the number of workers.
        end = shards[-1].end if is_capped else corpus.position
        facts |= {"n_files": end.file + (end.document > 0)} | end.left_out
        n_with_end = sum(shard.n_with_end for shard in shards)
        if n_with_end:
            facts["n_documents_with_end"] = n_with_end
        if shards and shards[0].read_back:
            facts["read_back"] = shards[0].read_back
        if (left_out := corpus.left_out(end)) is not None:
            say(f"data {study.data.name}: {left_out}")
    others = other_files(study.paths.text) if isinstance(source, FilesSource) else {}
    if others:
        facts["other_files"] = dict(sorted(others.items()))
    patterns = study.paths.text if isinstance(source, FilesSource) else ()
    hidden = [path for pattern in patterns for path in hidden_in(pattern)]
    if hidden:
        facts["n_hidden_files"] = len(hidden)
    if isinstance(source, HubSource) and corpus.listing is not None:
        facts["place"] = corpus.listing.facts()
    if bpe is not None:
        facts["bpe"] = bpe.facts()

    encoder = load_encoder(out / TOKENIZER)
    return Meta(
        data_id=data_id,
        vocab_size=study.data.vocab_size,
        n_vocab=encoder.n_vocab,
        eot_id=encoder.eot_id,
        dtype=token_dtype(study.data.vocab_size).str,
        tokenizer=study.data.tokenizer,
        splits={split: _assemble(split, shards, out, study.data.vocab_size) for split in SPLITS},
        source=facts,
    )


def _count_tokens(file: Path, meta: Meta) -> npt.NDArray[np.int64]:
    """Return the count of each token in a bin, shape (vocab_size,)."""
    counts = np.zeros(meta.vocab_size, dtype=np.int64)
    with file.open("rb") as tokens:
        while chunk := tokens.read(_COPY_BYTES):
            counts += np.bincount(np.frombuffer(chunk, meta.dtype), minlength=meta.vocab_size)
    return counts


def _jobs(data: Data, data_id: str, out: Path, corpus: Corpus) -> Iterator[ShardJob]:
    """Yield the jobs of the source's shards, which are the same for any number of workers and after
    any restart."""
    if isinstance(data.source, SyntheticSource):
        for index in range(language(data.source).n_shards):
            yield ShardJob(data_id, data, out, index)
        return
    key = "" if corpus.listing is None else digest([data_id, corpus.listing.key, SHARD_CHARACTERS])
    index = 0
    for shard in _finished_shards(out, key, data.max_tokens):
        yield ShardJob(data_id, data, out, index, finished=shard)
        corpus.start_at(shard.end)
        index += 1
    texts: list[str] = []
    n_characters = 0
    for text in corpus:
        texts.append(text)
        n_characters += len(text)
        if n_characters >= SHARD_CHARACTERS:
            yield ShardJob(data_id, data, out, index, tuple(texts), key, corpus.position)
            index, texts, n_characters = index + 1, [], 0
    if texts:
        yield ShardJob(data_id, data, out, index, tuple(texts), key, corpus.position)


def _finished_shards(out: Path, source: str, max_tokens: int | None) -> Iterator[Shard]:
    """Yield the finished shards of a ``source`` from the first on, without the one that
    ``max_tokens`` cuts."""
    if not source:
        return
    n_tokens = 0
    for index in count():
        shard = read_shard(out, index)
        if shard is None or shard.source != source:
            return
        n_tokens += sum(shard.n_tokens)
        if max_tokens is not None and n_tokens >= max_tokens:
            return
        yield shard


def _check_sizes(splits: Mapping[str, Bin], study: Study) -> None:
    """Raise ``ValueError`` if a split has no window of ``seq_len`` inputs and their targets."""
    training = study.training
    n_all = sum(part.n_documents for part in splits.values())
    for split in dict.fromkeys(map(training.held_out, splits)):
        part = splits[split]
        tokens, documents = part.n_tokens, part.n_documents
        if tokens < training.seq_len + 1:
            if isinstance(study.data.source, OwnSource):
                advice = f"let the class of data.source give more tokens of {split}"
            elif split == "train":
                advice = "give more text"
            else:
                advice = f"raise data.split.{split}_fraction, or give more text"
            raise ValueError(
                f"data.split: {split} has {tokens} tokens in {documents} of {n_all} documents, but"
                f" needs training.seq_len + 1 = {training.seq_len + 1}; {advice}"
            )


def _assemble(split: str, shards: list[Shard], out: Path, vocab_size: int) -> Bin:
    """Write the bin of ``split`` from its tokens in all shards."""
    split_index = SPLITS.index(split)
    itemsize = token_dtype(vocab_size).itemsize
    file = out / f"{split}.bin"
    checksum = sha256()
    with atomic_path(file) as temporary, temporary.open("wb") as target:
        for index, shard in enumerate(shards):
            # A shard has its splits one after the other, in the order of SPLITS.
            with shard_file(out, index).open("rb") as tokens:
                tokens.seek(sum(shard.n_tokens[:split_index]) * itemsize)
                n_left = shard.n_tokens[split_index] * itemsize
                while n_left:
                    chunk = tokens.read(min(n_left, _COPY_BYTES))
                    assert chunk, "a shard is shorter than its record says"
                    target.write(chunk)
                    checksum.update(chunk)
                    n_left -= len(chunk)
    n_tokens = sum(shard.n_tokens[split_index] for shard in shards)
    n_documents = sum(shard.n_documents[split_index] for shard in shards)
    n_bytes = sum(shard.n_bytes[split_index] for shard in shards)
    return Bin(file.name, n_tokens, n_documents, checksum.hexdigest(), n_bytes)
