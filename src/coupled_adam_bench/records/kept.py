"""What is kept beside an evaluation: losses of windows, cosines of word pairs, and results document
by document.

Each is a file packed by gzip, whose SHA-256 the evaluation has, and the same numbers are the same
bytes. Windows and pairs are tables of CSV, in which floats have the fewest digits that read back as
the same float64. Documents, which are the items of tasks, have a line of JSON each. P: pieces of
windows, or kept pairs of a set
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.records.stored import Measurement, measurement_of
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.catalogue.stages import STAGES
from coupled_adam_bench.study.plan.cells import Cell

WINDOWS, PAIRS, DOCUMENTS = "windows.csv.gz", "pairs.csv.gz", "documents.jsonl.gz"
"""What the names of the files end in, after that of the evaluation."""
_WINDOW_COLUMNS = {
    "start": np.int64,
    "document": np.int64,
    "n_targets": np.int64,
    "loss": np.float64,
}
_PAIR_COLUMNS = {"set": np.str_, "place": np.int64, "rating": np.float64, "cosine": np.float64}

Columns = Mapping[str, type[np.generic]]


def _rows(*columns: NDArray[Any]) -> Iterable[tuple[Any, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def _pack(names: Iterable[str], rows: Iterable[Iterable[Any]]) -> bytes:
    text = "".join(",".join(map(str, row)) + "\n" for row in (names, *rows))
    return gzip.compress(text.encode(), mtime=0)


def _unpack(contents: bytes, columns: Columns, path: Path, what: str) -> list[NDArray[Any]]:
    """Return the columns of a file's contents; ``ValueError`` with its ``path`` if they are not
    ``what`` is said."""
    try:
        names, *rows = (line.split(",") for line in gzip.decompress(contents).decode().splitlines())
        if names != [*columns]:
            raise ValueError(f"columns {names}, not {[*columns]}")
        texts = zip(*rows, strict=True) if rows else [()] * len(columns)
        return [np.array(text, kind) for text, kind in zip(texts, columns.values(), strict=True)]
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(f"{path}: not {what} ({error}); delete it and start again") from None


# ---- windows of held-out text ----


@dataclass(frozen=True)
class WindowLosses:
    """The pieces of windows in the order of the evaluation, since a window is cut where a document
    ends; shapes (P,).

    A piece has the targets at ``start`` + 1 to ``start`` + ``n_targets`` of the split, all of one
    document, and their mean loss in nats. Documents are numbered by their place in the split, and
    each has the end-of-text token that ends it.
    """

    starts: NDArray[np.int64]
    documents: NDArray[np.int64]
    n_targets: NDArray[np.int64]
    losses: NDArray[np.float64]


@dataclass(frozen=True)
class PairedWindows:
    """The same pieces under two cells: documents, numbers of targets, and the mean losses; each of
    shape (P,)."""

    documents: NDArray[np.int64]
    n_targets: NDArray[np.int64]
    first: NDArray[np.float64]
    second: NDArray[np.float64]


def pack_windows(windows: WindowLosses) -> bytes:
    """Return windows as the contents of their file."""
    return _pack(
        _WINDOW_COLUMNS, _rows(windows.starts, windows.documents, windows.n_targets, windows.losses)
    )


def unpack_windows(contents: bytes, path: Path) -> WindowLosses:
    """Return the windows of a file's contents; ``ValueError`` with its ``path`` if they are
    none."""
    return WindowLosses(*_unpack(contents, _WINDOW_COLUMNS, path, "the losses of windows"))


def read_windows(measurement: Measurement, cell_id: str) -> WindowLosses:
    """Return the windows of a cell; ``ValueError`` if it has diverged, is not measured, or a file
    is damaged."""
    if measurement.read(cell_id)["status"] == "diverged":
        path = measurement.find(cell_id)
        raise ValueError(f"{path}: the cell has diverged, so there are no losses of windows")
    path = measurement.file(cell_id, WINDOWS)
    return unpack_windows(path.read_bytes(), path)


def paired_windows(first: Cell, second: Cell, runs: Path = paths.RUNS) -> PairedWindows:
    """Return the losses of two cells on the windows that both were measured on, in the order of the
    windows.

    ``ValueError`` if these are not the same windows of the same text, or for what
    :func:`read_windows` refuses.
    """
    cells = (first, second)
    measurements = [
        measurement_of(STAGES["test_loss"], cell.study, cell.data_id, runs) for cell in cells
    ]
    ours, theirs = (
        read_windows(measured, cell.id) for measured, cell in zip(measurements, cells, strict=True)
    )
    texts = {
        (cell.data_id, measured.settings["split"])
        for cell, measured in zip(cells, measurements, strict=True)
    }
    places = ((ours.starts, theirs.starts), (ours.n_targets, theirs.n_targets))
    if len(texts) > 1 or not all(np.array_equal(*pair) for pair in places):
        raise ValueError(
            f"{first.id} and {second.id} were not measured on the same windows, so these make no"
            " pairs; compare cells of one text, one training.seq_len and, with"
            " evaluation.test_loss.windows 'random', one seed"
        )
    return PairedWindows(ours.documents, ours.n_targets, ours.losses, theirs.losses)


# ---- word pairs ----


@dataclass(frozen=True)
class PairSimilarities:
    """The kept pairs of a set: place in its file from 0, human rating, and cosine, NaN with a
    vector of zeros."""

    name: str
    places: NDArray[np.int64]
    """Shape (P,)."""
    ratings: NDArray[np.float64]
    """Shape (P,)."""
    cosines: NDArray[np.float64]
    """Shape (P,)."""


def pack_pairs(sets: Sequence[PairSimilarities]) -> bytes:
    """Return the pairs of all sets as the contents of their file."""
    rows = [
        (found.name, *pair)
        for found in sets
        for pair in _rows(found.places, found.ratings, found.cosines)
    ]
    return _pack(_PAIR_COLUMNS, rows)


def unpack_pairs(contents: bytes, path: Path) -> list[PairSimilarities]:
    """Return the sets of a file's contents, in their order; ``ValueError`` with its ``path`` if
    they are none."""
    names, *columns = _unpack(contents, _PAIR_COLUMNS, path, "the similarities of word pairs")
    sets = []
    for name in dict.fromkeys(names.tolist()):
        own = [column[names == name] for column in columns]
        sets.append(PairSimilarities(name, *own))
    return sets


def read_pair_similarities(measurement: Measurement, cell_id: str) -> list[PairSimilarities]:
    """Return the sets of a measured cell, none where they were not kept; ``ValueError`` if a file
    is damaged."""
    if PAIRS not in measurement.read(cell_id).get("files", {}):
        return []
    path = measurement.file(cell_id, PAIRS)
    return unpack_pairs(path.read_bytes(), path)


# ---- documents of downstream tasks ----


@dataclass(frozen=True)
class Document:
    """What a model did with one item of a task."""

    task: str
    doc_id: int
    """The number of the item in its task, from 0."""
    doc_hash: str
    """The first 16 digits of lm-eval's hash of the item's contents."""
    gold: Any
    """What lm-eval says is right: of a multiple choice the number of the answer, from 0, else a
    text."""
    metrics: dict[str, float]
    """The metrics of only this item, such as ``acc`` and ``acc_norm``, under their names in
    ``results.csv``."""
    loglikelihoods: list[float]
    """The log-likelihoods that lm-eval asks for, in nats: of the answers in their order, or
    none."""


def documents_of(task: str, samples: Iterable[dict[str, Any]]) -> list[Document]:
    """Return the documents of a task from the ``samples`` that lm-eval logs, one for each document
    and filter."""
    found: dict[int, Document] = {}
    for sample in samples:
        document = found.get(sample["doc_id"])
        if document is None:
            scores = [response[0] for response in sample["resps"]]
            document = found[sample["doc_id"]] = Document(
                task=task,
                doc_id=sample["doc_id"],
                doc_hash=sample["doc_hash"][:16],
                gold=sample["target"],
                metrics={},
                loglikelihoods=[float(score[0]) for score in scores if isinstance(score, tuple)],
            )
        for metric in sample["metrics"]:
            value = sample[metric]
            if isinstance(value, Real):  # others, such as pairs, are for lm-eval's own means
                document.metrics[column_of(metric, sample["filter"])] = float(value)
    return [found[doc_id] for doc_id in sorted(found)]


def column_of(metric: str, filtered: str) -> str:
    """Return the name of a metric in ``results.csv`` after one of lm-eval's filters, of which
    ``none`` is the usual."""
    return metric if filtered == "none" else f"{metric}@{filtered}"


def pack_documents(documents: Iterable[Document]) -> bytes:
    """Return the contents of the file of documents."""
    lines = [json.dumps(asdict(document), default=str) + "\n" for document in documents]
    return gzip.compress("".join(lines).encode(), 6, mtime=0)


def read_documents(measurement: Measurement, cell_id: str) -> list[Document]:
    """Return the documents of a cell, none of a diverged one; ``ValueError`` as of
    :meth:`Measurement.read`."""
    if DOCUMENTS not in measurement.read(cell_id).get("files", {}):
        return []
    lines = gzip.decompress(measurement.file(cell_id, DOCUMENTS).read_bytes()).decode().splitlines()
    return [Document(**json.loads(line)) for line in lines]


def read_scores(measurement: Measurement, cell_id: str, metric: str) -> dict[str, dict[str, float]]:
    """Return one metric of a cell's documents by task and document; ``ValueError`` as of
    :func:`read_documents`.

    A document is named by its number, its hash and what is right. Documents without the metric are
    left out.
    """
    scores: dict[str, dict[str, float]] = {}
    for document in read_documents(measurement, cell_id):
        if metric in document.metrics:
            name = f"{document.doc_id} {document.doc_hash} {document.gold}"
            scores.setdefault(document.task, {})[name] = document.metrics[metric]
    return scores
