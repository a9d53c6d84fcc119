"""Shards: finished pieces of the token bins, each with its checksum, which a restart reuses.

A shard is a file of token ids, first of train, then of val, then of test, and a record beside it
that is written last.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from coupled_adam_bench.data.bins import SPLITS, token_dtype
from coupled_adam_bench.data.check import TOKENIZER
from coupled_adam_bench.data.documents import END_OF_TEXT
from coupled_adam_bench.data.sources import START, Position
from coupled_adam_bench.data.synthetic import language
from coupled_adam_bench.data.tokenizers import load_encoder
from coupled_adam_bench.store.files import atomic_path, read_sealed, sha256_file, write_sealed
from coupled_adam_bench.study.settings import Data, Split, SyntheticSource

_READ_BACK = 100
"""Number of documents that are turned into tokens and back."""
_READ_BACK_CHARACTERS = 10_000
"""Number of characters of each of them."""


@dataclass(frozen=True)
class Shard:
    """The record of a finished shard; counts are in the order of SPLITS."""

    key: str
    """Hash of the shard's input; a shard of other input is not reused."""
    bin_sha256: str
    n_tokens: tuple[int, ...]
    n_documents: tuple[int, ...]
    n_bytes: tuple[int, ...]
    """Bytes of the documents' text in UTF-8."""
    source: str = ""
    """Hash of the source's files and of how it is cut into shards; empty for a source that is
    always read anew."""
    end: Position = START
    """The position in the source at which the shard ends."""
    n_with_end: int = 0
    """Number of documents with the mark of end of text in their text."""
    read_back: str = ""
    """How the tokenizer gives back a text of the first shard, if it changes it; else empty."""


@dataclass(frozen=True)
class ShardJob:
    """The input for one shard: shard ``index`` of a generated language, or the given texts."""

    data_id: str
    data: Data
    folder: Path
    """Folder of the data; shards are in its ``shards/``."""
    index: int
    texts: tuple[str, ...] = ()
    source: str = ""
    end: Position = START
    limit: int | None = None
    """Number of tokens after which no more of the texts are taken; by default all are."""
    finished: Shard | None = None
    """The record of the shard, if it is finished and its texts are not read again."""


def shards_dir(folder: Path) -> Path:
    """Return the folder of the shards of the data in ``folder``."""
    return folder / "shards"


def shard_file(folder: Path, index: int) -> Path:
    """Return the file of tokens of shard ``index``; its record has the suffix .json."""
    return shards_dir(folder) / f"{index:06d}.bin"


def split_of(text: bytes, split: Split) -> int:
    """Return the index in SPLITS of a document's split, which depends only on its text and
    ``split.seed``.

    The hash of the text is a number u in [0, 1). Documents with u below ``val_fraction`` are val,
    and from 1 - ``test_fraction`` on test, so a change of one fraction moves no document between
    the other two splits.
    """
    key = (split.seed % 2**64).to_bytes(8, "little")
    u = int.from_bytes(blake2b(text, digest_size=8, key=key).digest(), "little") / 2**64
    if u < split.val_fraction:
        return SPLITS.index("val")
    return SPLITS.index("test" if u >= 1 - split.test_fraction else "train")


def make_shard(job: ShardJob) -> tuple[Shard, bool]:
    """Return the record of a shard and whether it was made now; a finished shard on disk is
    verified and reused."""
    if job.finished is not None:
        return job.finished, False
    file = shard_file(job.folder, job.index)
    key = _key(job)
    finished = read_shard(job.folder, job.index)
    if finished is not None and finished.key == key:
        return finished, False
    # A shard's file has its splits one after the other, so all documents are held until it ends.
    dtype = token_dtype(job.data.vocab_size)
    documents_by_split: list[list[np.ndarray[Any, np.dtype[Any]]]] = [[] for _ in SPLITS]
    n_bytes_by_split = [0] * len(SPLITS)
    n_taken = n_with_end = 0
    for text, tokens in (
        _generated(job) if isinstance(job.data.source, SyntheticSource) else _encoded(job)
    ):
        split = split_of(text, job.data.split)
        documents_by_split[split].append(tokens.astype(dtype))
        n_bytes_by_split[split] += len(text)
        n_taken += len(tokens)
        n_with_end += END_OF_TEXT.encode() in text
        if job.limit is not None and n_taken >= job.limit:
            break
    with atomic_path(file) as temporary:
        with temporary.open("wb") as out:
            for documents in documents_by_split:
                for tokens in documents:
                    out.write(tokens.data)
        sha256 = sha256_file(temporary)
    shard = Shard(
        key,
        sha256,
        n_tokens=tuple(sum(map(len, documents)) for documents in documents_by_split),
        n_documents=tuple(map(len, documents_by_split)),
        n_bytes=tuple(n_bytes_by_split),
        source=job.source,
        end=job.end,
        n_with_end=n_with_end,
        read_back=_read_back(job),
    )
    # Written last, the record says that the tokens before it are whole.
    write_sealed(file.with_suffix(".json"), asdict(shard))
    return shard, True


def _read_back(job: ShardJob) -> str:
    """Return in words the first change that the tokenizer makes to the first texts of all; empty if
    it makes none, and for tokenizers that make none of any text."""
    if job.index > 0 or job.data.tokenizer != "file":
        return ""
    encoder = load_encoder(job.folder / TOKENIZER)
    changes = (encoder.change_of(text[:_READ_BACK_CHARACTERS]) for text in job.texts[:_READ_BACK])
    return next(filter(None, changes), "")


def _key(job: ShardJob) -> str:
    key = blake2b(
        f"{job.data_id} {job.index}{'' if job.limit is None else f' {job.limit}'}".encode(),
        digest_size=16,
    )
    for text in job.texts:
        data = text.encode()
        key.update(len(data).to_bytes(8, "little") + data)
    return key.hexdigest()


def read_shard(folder: Path, index: int) -> Shard | None:
    """Return the record of shard ``index`` if it is finished and whole, else ``None``."""
    file = shard_file(folder, index)
    record = file.with_suffix(".json")
    if not (record.is_file() and file.is_file()):
        return None
    try:
        values = read_sealed(record)
        for name in ("n_tokens", "n_documents", "n_bytes"):
            values[name] = tuple(values[name])
        shard = Shard(**values | {"end": Position(*values.get("end", ()))})
    except (ValueError, KeyError, TypeError):  # the record is damaged or of another version
        return None
    return shard if sha256_file(file) == shard.bin_sha256 else None


def _encoded(job: ShardJob) -> Iterator[tuple[bytes, np.ndarray[Any, np.dtype[Any]]]]:
    encoder = load_encoder(job.folder / TOKENIZER)
    for text in job.texts:
        yield text.encode(), np.append(encoder.encode(text), encoder.eot_id)


def _generated(job: ShardJob) -> Iterator[tuple[bytes, np.ndarray[Any, np.dtype[Any]]]]:
    assert isinstance(job.data.source, SyntheticSource)
    generated = language(job.data.source)
    for words in generated.shard(job.index):
        yield generated.text(words).encode(), np.append(words, job.data.source.n_words)


class WorkerKilledError(ValueError):
    """A worker process was killed: the exit status of its job is that of a killed process."""

    status = 128 + signal.SIGKILL


def make_shards(
    jobs: Iterable[ShardJob], workers: int
) -> Generator[tuple[ShardJob, Shard, bool], None, None]:
    """Make shards in ``workers`` processes; yield each job, its record and whether it was made now,
    in order.

    At most two jobs per worker are queued.
    """
    if workers == 1:
        for job in jobs:
            yield job, *make_shard(job)
        return
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_start_worker
    )
    pending: deque[tuple[ShardJob, Future[tuple[Shard, bool]]]] = deque()

    def first() -> tuple[ShardJob, Shard, bool]:
        job, future = pending.popleft()
        return job, *future.result()

    try:
        for job in jobs:
            # A job holds its texts, so a longer queue would only fill the memory.
            if len(pending) == 2 * workers:
                yield first()
            pending.append((job, pool.submit(make_shard, job)))
        while pending:
            yield first()
    except BrokenProcessPool:
        raise WorkerKilledError(
            "execution.data_threads: a worker process died, most likely for lack of memory; lower"
            f" it (now {workers}) and run again: finished parts are kept"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Leave Ctrl-C to the main process, and end when the main process dies, even if it is
    killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
