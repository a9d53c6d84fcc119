import json
import math
from pathlib import Path
from shutil import copy

import pytest

from coupled_adam_bench.cli.guard import untrained
from coupled_adam_bench.records.stored import row, wrong_row
from coupled_adam_bench.store.files import move_aside, read_sealed, write_json
from coupled_adam_bench.store.runs import (
    finished_run,
    read_history,
    run_damage,
    run_history,
    write_cell,
    write_run,
)
from coupled_adam_bench.store.weights import CELL, header_bytes


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A completed run with a history of two lines and a model of three files."""
    return make_run(tmp_path / "c")


def make_run(folder: Path) -> Path:
    (folder / "model" / "more").mkdir(parents=True)
    (folder / "history.jsonl").write_text(f'{{"step": 1, "loss": {len(folder.name)}}}\n')
    (folder / "model/model.safetensors").write_bytes(header_bytes({}, {CELL: folder.name}))
    for name in ("config.json", "more/tokenizer.json"):
        (folder / "model" / name).write_text(name)
    (folder / "checkpoints/step-00000001").mkdir(parents=True)
    write_json(folder / "checkpoints/step-00000001/state.json", {"identity": {"cell": folder.name}})
    write_cell(folder, {"id": folder.name})
    write_run(folder, {"cell": folder.name, "status": "completed", "step": 2})
    return folder


@pytest.mark.fault(
    "training",
    "One file of a cell's run is exchanged with that of another cell.",
    "The file is named, and training the cell again makes it anew.",
)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cell.json", "is of other, in the folder of c"),
        ("run.json", "is of other, in the folder of c"),
        ("history.jsonl", "but run.json says"),
    ],
)
def test_one_file_of_another_cell(name, said, run_dir):
    other = make_run(run_dir.with_name("other"))
    assert untrained(run_dir) is None
    copy(other / name, run_dir / name)
    problem = untrained(run_dir)
    assert problem is not None and f"{run_dir / name}: " in problem and said in problem
    if name != "cell.json":
        with pytest.raises(
            ValueError, match=said if name == "run.json" else "not the one that run.json has"
        ):
            run_history(run_dir)


def test_nothing_that_is_set_aside_is_lost(tmp_path):
    for text in ("first", "second"):
        (tmp_path / "a.json").write_text(text)
        move_aside(tmp_path / "a.json")
    assert [(tmp_path / f"a.json.damaged-{number}").read_text() for number in (1, 2)] == [
        "first",
        "second",
    ]


def test_a_whole_run(run_dir):
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
    "The file is named; training the cell again ends with the same model, history and record, byte"
    " for byte.",
)
@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda path: path.write_text("")])
@pytest.mark.parametrize(
    "name", ["run.json", "history.jsonl", "model/model.safetensors", "model/config.json"]
)
def test_damage_is_named(name, damage, run_dir):
    damage(run_dir / name)
    of_model = name.startswith("model/")
    assert (run_damage(run_dir) is None) == (
        of_model or (name == "run.json" and not (run_dir / name).exists())
    )
    assert finished_run(run_dir, model=True) is None
    if (run_dir / "run.json").exists():
        assert str(run_dir / name) in str(run_damage(run_dir, model=True))


def test_a_record_of_another_version_or_of_a_run_that_goes_on(run_dir):
    values = read_sealed(run_dir / "run.json")
    write_json(run_dir / "run.json", values)
    assert "of another version of this program" in str(run_damage(run_dir))
    write_run(run_dir, values | {"status": "diverged"})
    run = finished_run(run_dir, model=True)
    assert run is not None
    assert run["model_sha256"] is None
    write_run(run_dir, values | {"status": "running"})
    assert finished_run(run_dir) is None


def test_history(tmp_path):
    path = tmp_path / "history.jsonl"
    rows = [{"step": 1, "loss": 2.5, "mean_norm_ratio": 0.1}, {"step": 2, "loss": float("nan")}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3, "lo')
    assert [row["step"] for row in read_history(path)] == [1, 2]
    assert read_history(path)[0] == rows[0]
    path.write_text(json.dumps(rows[0]) + "\n" + '{"step": 2}\n')
    with pytest.raises(ValueError, match=r"history\.jsonl: line 2 is not one"):
        read_history(path)


def test_a_value_out_of_the_bounds_of_its_metric_is_refused():
    good = [row("test", "loss", 3.25), row("average", "acc", 1.0), row("test", "loss", math.nan)]
    assert wrong_row(good) is None
    assert wrong_row([*good, row("average", "acc", 7.0)]) == "average acc is 7.0, outside 0 to 1"
