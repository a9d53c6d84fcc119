"""Data of downstream tasks on the hub, written into the folder ``paths.hub_mirror``, from which tasks are then read."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coupled_adam_bench.data.hub import Listing, download, list_place
from coupled_adam_bench.data.patience import Patience, PlaceError
from coupled_adam_bench.evaluation.task_files import HubData
from coupled_adam_bench.store.files import atomic_path
from coupled_adam_bench.study.presets import TASK_REVISIONS, Place


def list_task_data(name: str, data: HubData, split: str, mirror: Path, patience: Patience) -> Listing:
    """Return the files of a split of a task's data; ``ValueError`` that says why they cannot be read."""
    place = Place(data.dataset, TASK_REVISIONS.get(data.dataset), data.config_name, split)
    try:
        return list_place(place, patience)
    except PlaceError as error:
        raise ValueError(
            f"evaluation.downstream.tasks: {name}: {error.problem}; put its rows as lines of JSON at "
            f"{data.file(mirror, split)}, or a task file that reads another data set into paths.tasks"
        ) from error


def write_task_data(listing: Listing, file: Path, patience: Patience) -> None:
    """Write the rows of a split as lines of JSON, whole or not at all."""
    with (
        tempfile.TemporaryDirectory(prefix="coupled-adam-bench-") as folder,
        atomic_path(file) as temporary,
        temporary.open("w", encoding="utf-8") as out,
    ):
        for part in listing.files:
            for row in _rows(download(listing, part, Path(folder), patience)):
                out.write(json.dumps(row, ensure_ascii=False) + "\n")


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, as the library ``datasets`` gives them."""
    import datasets

    reader = "parquet" if path.suffix == ".parquet" else "json"
    with tempfile.TemporaryDirectory(prefix="coupled-adam-bench-") as cache:
        rows = datasets.load_dataset(reader, data_files=str(path), split="train", streaming=True, cache_dir=cache)
        yield from rows
