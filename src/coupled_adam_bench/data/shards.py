"""Shards: finished parts of the token bins, each with its checksum, that a restart takes over.

A shard is a file of token ids, those of train first, then val, then test, and a record beside it, written last.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from coupled_adam_bench.config import Data, Split, SyntheticSource
from coupled_adam_bench.data.bins import SPLITS, TOKENIZER, token_dtype
from coupled_adam_bench.data.synthetic import language
from coupled_adam_bench.data.tokenizers import load_encoder
from coupled_adam_bench.files import atomic_path, read_json, sha256_file, write_json


@dataclass(frozen=True)
class Shard:
    """Record of a finished shard; counts are in the order of SPLITS."""

    key: str
    """Hash of what the shard was made from: a shard of another input is not taken over."""
    sha256: str
    n_tokens: tuple[int, ...]
    n_documents: tuple[int, ...]


@dataclass(frozen=True)
class ShardJob:
    """What a process needs to make one shard: number ``index`` of a generated language, or of the given texts."""

    data_id: str
    data: Data
    folder: Path
    """Of the data; shards are in its ``shards/``."""
    index: int
    texts: tuple[str, ...] = ()


def shards_dir(folder: Path) -> Path:
    """Return the folder of the shards of the data in ``folder``."""
    return folder / "shards"


def shard_file(folder: Path, index: int) -> Path:
    """Return the file of tokens of shard ``index``; its record has the suffix .json."""
    return shards_dir(folder) / f"{index:06d}.bin"


def split_of(text: bytes, split: Split) -> int:
    """Return the split, a place in SPLITS, of a document: a function of its text and ``split.seed`` alone.

    The hash of the text is a number u in [0, 1): val below ``val_fraction``, test from 1 - ``test_fraction``, so a
    change of one fraction moves no document between the other two splits.
    """
    key = (split.seed % 2**64).to_bytes(8, "little")
    u = int.from_bytes(blake2b(text, digest_size=8, key=key).digest(), "little") / 2**64
    if u < split.val_fraction:
        return SPLITS.index("val")
    return SPLITS.index("test" if u >= 1 - split.test_fraction else "train")


def make_shard(job: ShardJob) -> tuple[Shard, bool]:
    """Return the record of a shard and whether it was made now; a finished one on disk is only verified."""
    file = shard_file(job.folder, job.index)
    key = _key(job)
    found = _finished(file, key)
    if found is not None:
        return found, False
    dtype = token_dtype(job.data.vocab_size)
    parts: list[list[np.ndarray[Any, np.dtype[Any]]]] = [[] for _ in SPLITS]
    for text, tokens in _generated(job) if isinstance(job.data.source, SyntheticSource) else _encoded(job):
        parts[split_of(text, job.data.split)].append(tokens.astype(dtype))
    with atomic_path(file) as temporary:
        with temporary.open("wb") as out:
            for documents in parts:
                for tokens in documents:
                    out.write(tokens.data)
        sha256 = sha256_file(temporary)
    shard = Shard(
        key,
        sha256,
        n_tokens=tuple(sum(map(len, documents)) for documents in parts),
        n_documents=tuple(map(len, parts)),
    )
    write_json(file.with_suffix(".json"), asdict(shard))
    return shard, True


def _key(job: ShardJob) -> str:
    key = blake2b(f"{job.data_id} {job.index}".encode(), digest_size=16)
    for text in job.texts:
        data = text.encode()
        key.update(len(data).to_bytes(8, "little") + data)
    return key.hexdigest()


def _finished(file: Path, key: str) -> Shard | None:
    """Return the record of a shard if it is whole and was made from the same input."""
    record = file.with_suffix(".json")
    if not (record.is_file() and file.is_file()):
        return None
    values = read_json(record)
    shard = Shard(values["key"], values["sha256"], tuple(values["n_tokens"]), tuple(values["n_documents"]))
    return shard if shard.key == key and sha256_file(file) == shard.sha256 else None


def _encoded(job: ShardJob) -> Iterator[tuple[bytes, np.ndarray[Any, np.dtype[Any]]]]:
    encoder = load_encoder(job.data.tokenizer, job.folder / TOKENIZER)
    for text in job.texts:
        yield text.encode(), np.append(encoder.encode(text), encoder.eot_id)


def _generated(job: ShardJob) -> Iterator[tuple[bytes, np.ndarray[Any, np.dtype[Any]]]]:
    assert isinstance(job.data.source, SyntheticSource)
    generated = language(job.data.source)
    for words in generated.shard(job.index):
        yield generated.text(words).encode(), np.append(words, job.data.source.n_words)


def make_shards(jobs: Iterable[ShardJob], workers: int) -> Iterator[tuple[Shard, bool]]:
    """Make shards in ``workers`` processes and yield their records in order; at most two per worker are in memory."""
    if workers == 1:
        yield from map(make_shard, jobs)
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_start_worker)
    pending: deque[Future[tuple[Shard, bool]]] = deque()
    try:
        for job in jobs:
            if len(pending) == 2 * workers:
                yield pending.popleft().result()
            pending.append(pool.submit(make_shard, job))
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise ValueError(
            "execution.data_threads: a worker process died, most likely for lack of memory; lower it "
            f"(now {workers}) and run again: finished parts are kept"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Leave Ctrl-C to the main process, and end when that dies, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
