import json
from collections.abc import Callable
from pathlib import Path

import pytest

from coupled_adam_bench.files import read_sealed, write_json
from coupled_adam_bench.locks import folder_lock
from coupled_adam_bench.paths import RunFiles
from coupled_adam_bench.runs import (
    begin_attempt,
    end_attempt,
    finished_run,
    killed_attempts,
    read_history,
    run_damage,
    write_run,
)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A completed run with a history of two lines and a model of three files."""
    (tmp_path / "history.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    (tmp_path / "model" / "more").mkdir(parents=True)
    for name in ("model.safetensors", "config.json", "more/tokenizer.json"):
        (tmp_path / "model" / name).write_text(name)
    write_run(tmp_path, {"cell": "c", "status": "completed", "step": 2})
    return tmp_path


def test_a_whole_run(run_dir: Path) -> None:
    run = finished_run(run_dir, model=True)
    assert run is not None
    assert (run["cell"], run["status"], run["step"]) == ("c", "completed", 2)
    assert set(run["model_files"]) == {"config.json", "more/tokenizer.json"}
    assert run_damage(run_dir, model=True) is None
    assert finished_run(run_dir / "nowhere") is None
    assert run_damage(run_dir / "nowhere") is None


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.fault(
    "training",
    "A byte or a line of any file in a finished cell's folder changes, or the file is lost.",
    "The file is named; training the cell again ends with the same model, history and record, byte for byte.",
)
@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda path: path.write_text("")])
@pytest.mark.parametrize("name", ["run.json", "history.jsonl", "model/model.safetensors", "model/config.json"])
def test_damage_is_named(name: str, damage: Callable[[Path], None], run_dir: Path) -> None:
    damage(run_dir / name)
    of_model = name.startswith("model/")
    assert (run_damage(run_dir) is None) == (of_model or (name == "run.json" and not (run_dir / name).exists()))
    assert finished_run(run_dir, model=True) is None
    if (run_dir / "run.json").exists():
        assert str(run_dir / name) in str(run_damage(run_dir, model=True))


def test_a_record_of_another_version_or_of_a_run_that_goes_on(run_dir: Path) -> None:
    values = read_sealed(run_dir / "run.json")
    write_json(run_dir / "run.json", values)
    assert "of another version of this program" in str(run_damage(run_dir))
    write_run(run_dir, values | {"status": "diverged"})
    run = finished_run(run_dir, model=True)
    assert run is not None
    assert run["model_sha256"] is None
    write_run(run_dir, values | {"status": "running"})
    assert finished_run(run_dir) is None


def test_attempts_that_noted_no_end_are_counted(tmp_path: Path) -> None:
    assert killed_attempts(tmp_path) == 0
    with folder_lock(tmp_path):
        first, was_killed = begin_attempt(tmp_path)
        assert not was_killed
        assert killed_attempts(tmp_path) == 0  # it lives
    assert killed_attempts(tmp_path) == 1  # it was killed
    with folder_lock(tmp_path):
        second, was_killed = begin_attempt(tmp_path)
        assert was_killed
        assert killed_attempts(tmp_path) == 1
        end_attempt(tmp_path, first, finished=True)  # of a process that was slow to end
        assert killed_attempts(tmp_path) == 1
        end_attempt(tmp_path, second, finished=False)  # stopped in order: the next one still needs the memory
    assert killed_attempts(tmp_path) == 1
    third, was_killed = begin_attempt(tmp_path)
    assert not was_killed
    end_attempt(tmp_path, third, finished=True)
    assert killed_attempts(tmp_path) == 0
    assert not RunFiles(tmp_path).attempt.exists()


def test_an_attempt_that_ends_in_order_leaves_nothing(tmp_path: Path) -> None:
    name, _ = begin_attempt(tmp_path)
    end_attempt(tmp_path, name, finished=False)
    assert list(tmp_path.iterdir()) == []
    RunFiles(tmp_path).attempt.write_text("[]")  # damaged: it tells of no kill
    assert killed_attempts(tmp_path) == 0


def test_history(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    rows = [{"step": 1, "loss": 2.5, "mean_norm_ratio": 0.1}, {"step": 2, "loss": float("nan")}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3, "lo')
    assert [row["step"] for row in read_history(path)] == [1, 2]
    assert read_history(path)[0] == rows[0]
    path.write_text(json.dumps(rows[0]) + "\n" + '{"step": 2}\n')
    with pytest.raises(ValueError, match=r"history\.jsonl: line 2 is not one"):
        read_history(path)
