"""What stands in the place of one file or folder, and is none."""

import os
from pathlib import Path

import pytest
from obstacles import FOR_FILES, FOR_FOLDERS, KINDS

from coupled_adam_bench.cli.guard import check_readable
from coupled_adam_bench.store.files import clear, move_aside, write_text
from coupled_adam_bench.store.locks import FolderLock, is_held


@pytest.mark.parametrize("kind", FOR_FILES)
def test_a_file_is_written_and_a_lock_is_taken_whatever_stands_there(kind: str, tmp_path: Path) -> None:
    for name in ("run.json", ".lock"):
        KINDS[kind](tmp_path / name)
    assert not is_held(tmp_path)
    write_text(tmp_path / "run.json", "{}")
    assert (tmp_path / "run.json").read_text() == "{}"
    lock = FolderLock(tmp_path)
    assert lock.acquire(0)
    assert is_held(tmp_path)
    lock.release()
    assert os.path.lexists(tmp_path / "run.json.damaged-1") and os.path.lexists(tmp_path / ".lock.damaged-1")


@pytest.mark.parametrize("kind", FOR_FOLDERS)
def test_a_folder_is_made_whatever_stands_there(kind: str, tmp_path: Path) -> None:
    for name in ("checkpoints", "runs"):
        KINDS[kind](tmp_path / name)
    write_text(tmp_path / "checkpoints" / "a.json", "{}")
    lock = FolderLock(tmp_path / "runs")
    assert lock.acquire(0)
    lock.release()


def test_what_belongs_there_stays(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text("1")
    (tmp_path / "link.json").symlink_to("file.json")
    for name in ("logs", "notes", "gpt2-0.6b_1M", ".step-1.tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "evaluation").symlink_to("logs")
    assert clear(tmp_path / "file.json") is None and clear(tmp_path / "logs", for_folder=True) is None


def test_nothing_that_was_set_aside_is_lost(tmp_path: Path) -> None:
    for text in ("first", "second"):
        (tmp_path / "a.json").write_text(text)
        move_aside(tmp_path / "a.json")
    assert [(tmp_path / f"a.json.damaged-{number}").read_text() for number in (1, 2)] == ["first", "second"]


@pytest.mark.fault(
    "results",
    "`results` is a link to a disk that is not mounted.",
    "A sentence names it; nothing is made anew beside it.",
)
def test_results_on_a_disk_that_is_away(tmp_path: Path) -> None:
    (tmp_path / "results").symlink_to(tmp_path / "disk")
    with pytest.raises(ValueError, match="results: this is a link to a folder that is not there; mount that"):
        check_readable([tmp_path / "results"])
