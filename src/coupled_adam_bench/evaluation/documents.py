"""The results of a cell's downstream tasks document by document, kept beside the evaluation; it imports nothing heavy.

A document is an item of a task. The file has one line of JSON for each, compressed by gzip, and the evaluation has the
file's SHA-256. The same documents give the same bytes.
"""

import gzip
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

from coupled_adam_bench.store.stored import Measurement

FILE = "documents.jsonl.gz"
"""The end of the name of the file, behind that of the evaluation."""
_HASH_DIGITS = 16
# How a line goes on where these fields of a document begin; none of these texts is in the values behind them.
_TASK, _DOC_ID, _METRICS, _LOGLIKELIHOODS = '{"task": ', ', "doc_id": ', ', "metrics": ', ', "loglikelihoods": '
_COMPRESSION = 6


@dataclass(frozen=True)
class Document:
    """What a model did with one item of a task."""

    task: str
    doc_id: int
    """The number of the item in its task, from 0."""
    doc_hash: str
    """The first 16 digits of lm-eval's hash of the item's contents."""
    gold: Any
    """What lm-eval says is right: of a multiple choice the number of the answer, from 0, else a text."""
    metrics: dict[str, float]
    """The metrics of this item alone, such as ``acc`` and ``acc_norm``, under their names in ``results.csv``."""
    loglikelihoods: list[float]
    """The log-likelihoods that lm-eval asks for, in nats: of the answers in their order, or none."""

    @property
    def key(self) -> tuple[str, int]:
        """The place of the document among those of all tasks."""
        return self.task, self.doc_id


def documents_of(task: str, samples: Iterable[dict[str, Any]]) -> list[Document]:
    """Return the documents of a task from the ``samples`` that lm-eval logs, one for each document and filter."""
    found: dict[int, Document] = {}
    for sample in samples:
        document = found.get(sample["doc_id"])
        if document is None:
            scores = [response[0] for response in sample["resps"]]
            document = found[sample["doc_id"]] = Document(
                task=task,
                doc_id=sample["doc_id"],
                doc_hash=sample["doc_hash"][:_HASH_DIGITS],
                gold=sample["target"],
                metrics={},
                loglikelihoods=[float(score[0]) for score in scores if isinstance(score, tuple)],
            )
        for metric in sample["metrics"]:
            if isinstance(value := sample[metric], Real):  # others, such as pairs, are for lm-eval's own means
                document.metrics[column_of(metric, sample["filter"])] = float(value)
    return [found[doc_id] for doc_id in sorted(found)]


def column_of(metric: str, filtered: str) -> str:
    """Return the name of a metric in ``results.csv`` after one of lm-eval's filters, of which ``none`` is the usual."""
    return metric if filtered == "none" else f"{metric}@{filtered}"


def documents_bytes(documents: Iterable[Document]) -> bytes:
    """Return the contents of the file of documents."""
    lines = [json.dumps(asdict(document), default=str) + "\n" for document in documents]
    return gzip.compress("".join(lines).encode(), _COMPRESSION, mtime=0)


def read_documents(measurement: Measurement, cell_id: str) -> list[Document]:
    """Return the documents of a cell, none of a diverged one; ``ValueError`` as of :meth:`Measurement.read`."""
    if FILE not in measurement.read(cell_id).get("files", {}):
        return []
    text = gzip.decompress(measurement.file(cell_id, FILE).read_bytes()).decode()
    return [Document(**json.loads(line)) for line in text.splitlines()]


def read_scores(measurement: Measurement, cell_id: str, metric: str) -> dict[str, dict[str, float]]:
    """Return one metric of a cell's documents by task and document; ``ValueError`` as of :func:`read_documents`.

    A document is what its line says of it: task, number, hash and what is right. It is not parsed, which is many times
    faster. Documents without the metric are left out.
    """
    if FILE not in measurement.read(cell_id).get("files", {}):
        return {}
    text = gzip.decompress(measurement.file(cell_id, FILE).read_bytes()).decode()
    scores: dict[str, dict[str, float]] = {}
    values: dict[str, float | None] = {}  # most documents have one of few texts of metrics
    for line in text.splitlines():
        document, _, rest = line.rpartition(_METRICS)
        metrics = rest.rpartition(_LOGLIKELIHOODS)[0]
        if metrics not in values:
            values[metrics] = json.loads(metrics).get(metric)
        if (value := values[metrics]) is not None:
            task = document[: document.index(_DOC_ID)].removeprefix(_TASK)
            scores.setdefault(task, {})[document] = value
    return {json.loads(task): of_task for task, of_task in scores.items()}


def paired_documents(
    measurement: Measurement, first_cell_id: str, second_cell_id: str
) -> list[tuple[Document, Document]]:
    """Return the documents of two cells side by side, in the order of the first.

    ``ValueError`` if one of them is not measured or damaged, or has a document that the other has not.
    """
    first, second = (
        {(*document.key, document.doc_hash): document for document in read_documents(measurement, cell_id)}
        for cell_id in (first_cell_id, second_cell_id)
    )
    if alone := first.keys() ^ second.keys():
        task, doc_id, doc_hash = min(alone)
        owner, other = first_cell_id, second_cell_id
        if min(alone) in second:
            owner, other = other, owner
        raise ValueError(
            f"documents: {owner} has document {doc_id} of task {task!r} with hash {doc_hash}, {other} has not, one of "
            f"{len(alone)} that have no equal; compare cells that were scored on the same documents: a diverged cell, "
            "or one with log-likelihoods that are not finite, has none"
        )
    return [(document, second[key]) for key, document in first.items()]
