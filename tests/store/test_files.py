"""Files are whole or absent, and what was changed behind our back is seen."""

import json
import random
from pathlib import Path

import pytest

from coupled_adam_bench.store.evaluations import Measurement, row
from coupled_adam_bench.store.files import atomic_path, digest, read_json, write_changed, write_text
from coupled_adam_bench.store.runs import WEIGHTS, Run, run_of


def test_a_file_is_replaced_whole_or_not_at_all(home: Path) -> None:
    file = home / "folder/file.txt"
    write_text(file, "first")
    with pytest.raises(RuntimeError), atomic_path(file) as temporary:
        temporary.write_text("sec")
        assert file.read_text() == "first"
        raise RuntimeError
    assert file.read_text() == "first"
    assert list(file.parent.iterdir()) == [file]
    write_text(file, "zweite Zeile: ä\n")
    assert file.read_bytes().decode() == "zweite Zeile: ä\n"


def test_an_equal_file_keeps_its_time(home: Path) -> None:
    file = home / "file.txt"
    write_changed(file, "one")
    first = file.stat()
    write_changed(file, "one")
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    write_changed(file, "two")
    assert file.read_text() == "two"


def test_a_digest_is_that_of_the_value() -> None:
    draw = random.Random(1)
    values = {f"key{n}": [draw.random(), n, None, {"a": n, "b": str(n)}] for n in range(20)}
    items = list(values.items())
    draw.shuffle(items)
    assert digest(dict(items)) == digest(values)
    for name in values:
        changed = values | {name: [*values[name], 0]}
        assert digest(changed) != digest(values)


def test_damaged_json_names_its_file(home: Path) -> None:
    (home / "file.json").write_text('{"a": 1')
    with pytest.raises(ValueError, match=r"file\.json"):
        read_json(Path("file.json"))


def trained(cell: str, status: str = "completed") -> Run:
    """Write the run of a cell with a history and weights."""
    run = run_of(cell)
    run.model.mkdir(parents=True)
    run.history.write_text('{"step": 1}\n{"step": 2}\n{"st')
    (run.folder / WEIGHTS).write_bytes(b"weights of " + cell.encode())
    run.write({"cell": cell, "status": status})
    return run


def test_a_run_knows_its_files(home: Path) -> None:
    run = trained("a")
    assert run.check()["status"] == "completed"
    assert run.rows() == [{"step": 1}, {"step": 2}]  # the last one was cut off
    assert run_of("b").rows() == []
    (run.folder / WEIGHTS).write_bytes(b"others")
    with pytest.raises(ValueError, match=WEIGHTS):
        run.check()
    with pytest.raises(ValueError, match="b is not trained"):
        run_of("b").read()


def test_an_evaluation_belongs_to_weights_settings_and_version(home: Path) -> None:
    run, settings = trained("a"), {"split": "test"}
    stage = Measurement("test_loss", 1, settings)
    assert not stage.is_done("a")
    stage.write("a", [row("test", "loss", 2.5, "nat")])
    assert stage.is_done("a")
    assert stage.read("a") == [{"task": "test", "metric": "loss", "value": 2.5, "unit": "nat"}]
    assert not Measurement("test_loss", 2, settings).is_done("a")
    assert not Measurement("test_loss", 1, {"split": "val"}).is_done("a")
    assert not Measurement("embeddings", 1, settings).is_done("a")
    # Another study has trained the cell again, with other weights.
    record = json.loads(run.record.read_text())
    record["sha256"][WEIGHTS] = "0" * 64
    run.record.write_text(json.dumps(record))
    assert not stage.is_done("a")


def test_a_diverged_run_has_nothing_to_measure(home: Path) -> None:
    trained("a", "diverged")
    stage = Measurement("test_loss", 1, {})
    assert stage.is_done("a")
    assert stage.read("a") == []
    assert not stage.is_done("b")
