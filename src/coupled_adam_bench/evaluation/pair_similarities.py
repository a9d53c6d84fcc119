"""The cosine of each word pair, kept beside the word similarity, so that a figure can show it against the rating.

P: kept pairs of a set
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.evaluation.packed_csv import damaged, pack_csv, unpack_csv
from coupled_adam_bench.store.stored import Measurement

FILE = "pairs.csv.gz"
"""What the name of the file ends in, after that of the evaluation."""
_HEADER = ("set", "place", "rating", "cosine")


@dataclass(frozen=True)
class PairSimilarities:
    """The kept pairs of a set: place in its file from 0, human rating, and cosine, NaN with a vector of zeros."""

    name: str
    places: NDArray[np.int64]
    """Shape (P,)."""
    ratings: NDArray[np.float64]
    """Shape (P,)."""
    cosines: NDArray[np.float64]
    """Shape (P,)."""


def pack(sets: Sequence[PairSimilarities]) -> bytes:
    """Return the pairs of all sets as the contents of their file."""
    rows = [
        (found.name, *values)
        for found in sets
        for values in zip(found.places.tolist(), found.ratings.tolist(), found.cosines.tolist(), strict=True)
    ]
    return pack_csv(_HEADER, list(zip(*rows, strict=True)) or [() for _ in _HEADER])


def unpack(contents: bytes, path: Path) -> list[PairSimilarities]:
    """Return the sets of a file's contents, in their order; ``ValueError`` with its ``path`` if they are none."""
    try:
        rows = zip(*unpack_csv(contents, _HEADER), strict=True)
        sets = []
        for name, of_set in groupby(rows, key=lambda row: row[0]):
            _, places, ratings, cosines = zip(*of_set, strict=True)
            columns = np.array(places, np.int64), np.array(ratings, np.float64), np.array(cosines, np.float64)
            sets.append(PairSimilarities(name, *columns))
    except ValueError as error:
        raise damaged(path, "the similarities of word pairs", error) from None
    return sets


def read_pair_similarities(measurement: Measurement, cell_id: str) -> list[PairSimilarities]:
    """Return the sets of a measured cell, none where they were not kept; ``ValueError`` if a file is damaged."""
    if FILE not in measurement.read(cell_id).get("files", {}):
        return []
    path = measurement.file(cell_id, FILE)
    return unpack(path.read_bytes(), path)
