"""The loss of each window of held-out tokens, kept beside the test loss, so that two cells can be compared in pairs.

The file is a packed table of pieces, since a window is cut where a document ends: where a piece starts in its split,
its held-out document, its targets, and their mean loss in nats. P: pieces, in the order of the evaluation.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.evaluation.packed_csv import damaged, pack_csv, unpack_csv
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.stored import Measurement, measurement_of
from coupled_adam_bench.study.catalog.stages import STAGES
from coupled_adam_bench.study.cells import Cell

FILE = "windows.csv.gz"
"""What the name of the file ends in, after that of the evaluation."""
_HEADER = ("start", "document", "n_targets", "loss")


@dataclass(frozen=True)
class WindowLosses:
    """The pieces of windows, arrays of shape (P,).

    A piece has the targets at ``start`` + 1 to ``start`` + ``n_targets`` of the split, all of one document. Documents
    are numbered by their place in the split, and each has the end-of-text token that ends it.
    """

    starts: NDArray[np.int64]
    documents: NDArray[np.int64]
    n_targets: NDArray[np.int64]
    losses: NDArray[np.float64]


@dataclass(frozen=True)
class PairedWindows:
    """The same pieces under two cells: documents, numbers of targets, and the mean losses; each of shape (P,)."""

    documents: NDArray[np.int64]
    n_targets: NDArray[np.int64]
    first: NDArray[np.float64]
    second: NDArray[np.float64]


def pack(windows: WindowLosses) -> bytes:
    """Return windows as the contents of their file, the same bytes for the same windows."""
    columns = (windows.starts, windows.documents, windows.n_targets, windows.losses)
    return pack_csv(_HEADER, [column.tolist() for column in columns])


def unpack(contents: bytes, path: Path) -> WindowLosses:
    """Return the windows of a file's contents; ``ValueError`` with its ``path`` if they are none."""
    try:
        *integers, losses = unpack_csv(contents, _HEADER)
        starts, documents, counts = (np.array(column, np.int64) for column in integers)
        return WindowLosses(starts, documents, counts, np.array(losses, np.float64))
    except ValueError as error:
        raise damaged(path, "the losses of windows", error) from None


def read_windows(measurement: Measurement, cell_id: str) -> WindowLosses:
    """Return the windows of a cell; ``ValueError`` if it has diverged, is not measured, or a file is damaged."""
    record, evaluation = measurement.read(cell_id), measurement.find(cell_id)
    if record["status"] == "diverged":
        raise ValueError(f"{evaluation}: the cell has diverged, so there are no losses of windows")
    path = measurement.file(cell_id, FILE)
    return unpack(path.read_bytes(), path)


def paired_windows(first: Cell, second: Cell, runs: Path = paths.RUNS) -> PairedWindows:
    """Return the losses of two cells on the windows that both were measured on, in the order of the windows.

    ``ValueError`` if these are not the same windows of the same text, or for what :func:`read_windows` refuses.
    """
    cells = (first, second)
    measurements = [measurement_of(STAGES["test_loss"], cell.study, cell.data_id, runs) for cell in cells]
    ours, theirs = (read_windows(measured, cell.id) for measured, cell in zip(measurements, cells, strict=True))
    texts = {(cell.data_id, measured.settings["split"]) for cell, measured in zip(cells, measurements, strict=True)}
    places = ((ours.starts, theirs.starts), (ours.n_targets, theirs.n_targets))
    if len(texts) > 1 or not all(np.array_equal(*pair) for pair in places):
        raise ValueError(
            f"{first.id} and {second.id} were not measured on the same windows, so these make no pairs; compare cells "
            "of one text, one training.seq_len and, with evaluation.test_loss.windows 'random', one seed"
        )
    return PairedWindows(ours.documents, ours.n_targets, ours.losses, theirs.losses)
