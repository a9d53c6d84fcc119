"""Obstacles in the places of a study's files and folders: the next start sets them aside and makes the files anew."""

from pathlib import Path

import pytest
from finished import outputs
from obstacles import FOR_FILES, FOR_FOLDERS, KINDS
from starts import finish

from coupled_adam_bench.store.files import remove

FILES = (
    "runs/*/run.json", "runs/*/cell.json", "runs/*/history.jsonl", "runs/*/.lock",
    "runs/*/evaluations/test_loss-*.json", "runs/*/evaluations/embeddings-*.json", "runs/*/model/model.safetensors",
    "runs/*/model/config.json", "runs/*/checkpoints/*/state.json", "data/*/meta.json", "data/*/train.bin",
    "data/*/.lock",
    "data/*/tokenizer/tokenizer_config.json", "tiny/plan.json", "tiny/results.csv", "tiny/tests.csv", "tiny/power.csv",
    "tiny/.lock", "tiny/tables/table1.tex", "tiny/tables/table1.html", "tiny/training/batch-000.done",
    "tiny/evaluation/batch-000.embeddings.done",
    "tiny/data/*.done", "tiny/logs/report.log", "tiny/logs/batch-000.train.log", "tiny/logs/batch-000.train.tsv",
    "tiny/logs/batch-000.train.log.attempts",
)  # fmt: skip
FOLDERS = (
    "runs/*/model", "runs/*/evaluations", "runs/*/checkpoints", "tiny/training", "tiny/evaluation",
    "tiny/logs", "tiny/tables", "data/*/tokenizer", "data/*/tasks",
)  # fmt: skip


NIGHTLY = pytest.mark.nightly
DRAWS = [
    (places, kinds, n) for places, kinds in ((FILES, FOR_FILES), (FOLDERS, FOR_FOLDERS)) for n in range(len(kinds))
]


def put(results: Path, pattern: str, kind: str, number: int) -> None:
    """Put an obstacle in a place, of those of several runs in that of the run with this number."""
    folder, _, name = pattern.rpartition("/")
    folders = sorted(results.glob(folder)) if folder else [results]
    parent = folders[number % len(folders)]
    path = next(iter(sorted(parent.glob(name))), parent / name)
    remove(path)
    KINDS[kind](path)


@pytest.mark.fault(
    "results",
    "a folder, a pipe, a socket or a link to nothing stands where a file belongs, or a file where a folder belongs",
    "the next start sets it aside, and the results are byte for byte those from before",
)
@pytest.mark.parametrize(
    ("places", "kinds", "number"), [draw if draw[2] == 0 else pytest.param(*draw, marks=NIGHTLY) for draw in DRAWS]
)
def test_obstacles(places, kinds, number, copy, finished):
    for index, pattern in enumerate(places):
        put(copy / "results", pattern, kinds[(index + number) % len(kinds)], index)
    finish(copy, "tables")
    assert outputs(copy) == outputs(finished)
