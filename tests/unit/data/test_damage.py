"""Every file of the data, damaged in every way: named by those who read it, made anew by the next
preparation."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planned import only, study_and_data

from coupled_adam_bench.data.bins import verified_file, verified_tree
from coupled_adam_bench.data.check import META, data_is_damaged, split_checksums
from coupled_adam_bench.data.prepare import prepare
from coupled_adam_bench.store.files import read_sealed, write_sealed
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.settings import parse_study

FILES = [
    "train.bin",
    "val.bin",
    "test.bin",
    "unigram.npy",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
    "word_similarity/synthetic.tsv",
    "tasks/synthetic_topic.jsonl",
    "tasks/synthetic_topic.yaml",
    "tasks/synthetic_grammar.jsonl",
    "tasks/synthetic_grammar.yaml",
]


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in sorted(folder.rglob("[!.]*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lose_a_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))


@pytest.fixture
def data(tiny_data: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_data, tmp_path / tiny_data.name))


def test_whole_data(data: Path, tiny_data: Path) -> None:
    assert data_is_damaged(data) is None
    assert data_is_damaged(data / "not there yet") is None
    assert set(read_sealed(data / META)["files"]) == set(FILES)
    assert verified_file(data, "unigram.npy") == data / "unigram.npy"
    assert [path.name for path in verified_tree(data, "tokenizer")] == [
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert list(split_checksums(data)) == ["train", "val", "test"]
    (data / "logs").mkdir()  # the workflow's own
    (data / "logs" / "prepare.log").touch()
    assert data_is_damaged(data) is None


@pytest.mark.fault(
    "text and data",
    "a byte, a line or the whole of a file beside the token bins is lost",
    "a job that reads the file stops and names it; the next start makes the data again with the"
    " same bits",
)
@pytest.mark.parametrize("damage", [flip, cut, lose_a_line, Path.unlink])
@pytest.mark.parametrize(
    "name", ["train.bin", "unigram.npy", "tokenizer/tokenizer.json", "tasks/synthetic_topic.jsonl"]
)
def test_each_damage_is_named_and_mended(
    name: str, damage: Callable[[Path], None], data: Path, tiny_plan: Plan
) -> None:
    before = contents(data)
    damage(data / name)
    assert str(data / name) in str(data_is_damaged(data))
    assert (data / META).exists()  # to look is not to touch
    with pytest.raises(ValueError, match=r"start again: it will be prepared anew") as raised:
        verified_file(data, name)
    assert str(data / name) in str(raised.value)
    assert not (data / META).exists()
    prepare(*study_and_data(only(tiny_plan)), data, workers=1)
    assert contents(data) == before
    assert verified_file(data, name).read_bytes() == before[name]


@pytest.mark.parametrize("name", ["train.bin", "unigram.npy", META])
def test_preparation_alone_finds_damage_too(
    name: str, data: Path, tiny_plan: Plan, capsys: Any
) -> None:
    before = contents(data)
    flip(data / name)
    prepare(*study_and_data(only(tiny_plan)), data, workers=1)
    assert contents(data) == before
    if name != META:
        assert f"{data / name}: SHA-256" in capsys.readouterr().err


@pytest.mark.fault(
    "text and data",
    "meta.json, which describes the prepared data, is damaged or edited",
    "its seal tells: the job stops, and the next start prepares the data anew, bit for bit the"
    " same",
)
@pytest.mark.parametrize(
    "damage",
    [flip, lose_a_line, lambda path: path.write_text("[]"), lambda path: path.write_text("{}")],
)
def test_a_damaged_description(damage: Callable[[Path], None], data: Path, tiny_plan: Plan) -> None:
    before = contents(data)
    damage(data / META)
    assert str(data / META) in str(data_is_damaged(data))
    with pytest.raises(ValueError, match=r"meta\.json: .*start again: it will be prepared anew"):
        verified_file(data, "val.bin")
    prepare(*study_and_data(only(tiny_plan)), data, workers=1)
    assert contents(data) == before


def test_only_small_files_are_read_when_the_workflow_starts(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (data / "train.bin").stat().st_size
    flip(data / "train.bin")
    assert data_is_damaged(data, below_bytes=size) is None
    assert "train.bin: SHA-256" in str(data_is_damaged(data, below_bytes=size + 1))
    cut(data / "train.bin")
    assert "train.bin: " in str(data_is_damaged(data, below_bytes=size))


PREPARE = """
import sys
from pathlib import Path
from coupled_adam_bench.data.prepare import prepare
from coupled_adam_bench.study.plan import load_plan
if __name__ == "__main__":
    plan = load_plan(Path(sys.argv[1]))
    (data,) = plan.data_ids
    prepare(plan.study_with_data(data), data, Path(sys.argv[2]), 1)
"""


@pytest.mark.fault(
    "several users",
    "two processes prepare the same data at the same time",
    "one waits for the other, says so, and finds the data complete",
)
def test_two_preparations_at_once(
    tiny_study: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    settings = tiny_study()
    settings["data"]["source"]["n_tokens"] = 1_600_000
    plan = make_plan(parse_study(settings))
    write_sealed(tmp_path / "plan.json", plan.to_json())
    (tmp_path / "run.py").write_text(PREPARE)
    command = [sys.executable, tmp_path / "run.py", tmp_path / "plan.json", tmp_path / "out"]
    first, second = (subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2))
    errors = [process.communicate(timeout=300)[1] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], errors
    assert (
        sum(
            "out: waits for the process that works in this folder (pid " in error
            for error in errors
        )
        == 1
    )
    assert sum("prepare tiny" in error for error in errors) == 1  # one of them has worked
    prepare(*study_and_data(only(plan)), tmp_path / "alone", workers=1)
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")
