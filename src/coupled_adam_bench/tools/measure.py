"""What this project knows of a model that ``measure`` measures: the data of a cell, for
``embedding_geometry``."""

from pathlib import Path

from coupled_adam_bench.data.bins import UNIGRAM
from coupled_adam_bench.data.check import WORD_PAIRS
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import read_sealed
from coupled_adam_bench.store.paths import RunFiles
from embedding_geometry.model import Known


def known_of(folder: Path) -> Known:
    """Return the counts and, for the generated language, the list of the cell whose trained model
    lies in ``folder``.

    Nothing is known of any other model, or of a cell whose data are not there.
    """
    run = RunFiles(folder.resolve().parent)
    try:
        data = paths.data_dir(read_sealed(run.cell)["data_id"], run.folder.parents[1])
    except (ValueError, OSError, KeyError, IndexError):
        return Known()
    counts, word_list = (_if_there(data / name) for name in (UNIGRAM, WORD_PAIRS))
    return Known(counts, word_list)


def _if_there(path: Path) -> Path | None:
    """Return a path if a file is there."""
    return path if path.is_file() else None
