"""What a second call of ``train`` makes of a run whose files were damaged: the same bytes, or a
sentence."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from planned import only

from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import (
    read_json,
    read_sealed,
    sha256_file,
    write_json,
    write_sealed,
)
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.training.checkpoint import CheckpointError, checkpoints, damage
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.jobs import train
from coupled_adam_bench.training.stop_requests import RESUME_ME
from coupled_adam_bench.training.trainer import Trainer

ALONE = WorkerGroup(torch.device("cpu"))
STEPS = 12


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def lose_a_line(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))


DAMAGES = [flip, lose_a_line, Path.unlink]


def settings_of(tiny_study: Callable[..., dict[str, Any]], **training: Any) -> dict[str, Any]:
    """One cell of 12 steps, a line of history each, a checkpoint every four."""
    settings = tiny_study()
    settings["training"] |= training
    settings["grid"][0] |= {
        "table": None,
        "optimizers": ["coupled_adam"],
        "tokens": [{"steps": STEPS}],
        "seeds": [1],
    }
    settings["execution"] |= {"checkpoint_every": 4, "log_every": 1}
    return settings


class Cell:
    """A cell and its run folder."""

    def __init__(self, plan: Plan, data: Path, runs: Path) -> None:
        (self.cell,), self.execution = plan.cells.values(), only(plan).study.execution
        self.data, self.run_dir = data, runs / self.cell.id

    def train(self) -> int:
        return train(self.cell, self.execution, self.data, self.run_dir, ALONE)

    def weights(self) -> bytes:
        return (self.run_dir / "model" / "model.safetensors").read_bytes()

    def history(self) -> str:
        return (self.run_dir / "history.jsonl").read_text()

    def losses(self) -> list[float]:
        return [json.loads(line)["loss"] for line in self.history().splitlines()]


@pytest.fixture(scope="module")
def trained(tiny_study, tiny_data, tmp_path_factory) -> Cell:
    """The finished cell; do not write into its folder."""
    plan = make_plan(parse_study(settings_of(tiny_study)))
    cell = Cell(plan, tiny_data, tmp_path_factory.mktemp("trained"))
    assert cell.train() == 0
    assert len(cell.losses()) == STEPS
    return cell


@pytest.fixture
def cell(trained: Cell, tmp_path: Path) -> Cell:
    copy = Cell.__new__(Cell)
    vars(copy).update(
        vars(trained), run_dir=Path(shutil.copytree(trained.run_dir, tmp_path / trained.cell.id))
    )
    return copy


@pytest.fixture
def stopped(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> Cell:
    """The cell, stopped by SIGTERM after step 7."""
    shutil.rmtree(cell.run_dir)
    stop_at(cell, 6, monkeypatch)
    assert cell.train() == RESUME_ME
    monkeypatch.undo()
    assert len(cell.losses()) == 7
    return cell


def stop_at(cell: Cell, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    train_step = Trainer.train_step

    def stopping(self: Trainer, index: int) -> Any:
        if index == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return train_step(self, index)

    monkeypatch.setattr(Trainer, "train_step", stopping)


def newest(cell: Cell, index: int = 0) -> Path:
    return checkpoints(cell.run_dir / "checkpoints")[index]


CHECKPOINT_FILES = (".metadata", "__0_0.distcp", "state.json", "history.jsonl", "checksums.json")
RUN_FILES = [
    "run.json",
    "cell.json",
    "history.jsonl",
    "model/model.safetensors",
    "model/config.json",
    "model/tokenizer.json",
    "model/tokenizer_config.json",
    "model/generation_config.json",
    "model/README.md",
    ".lock",
]
RUN_FILES += [
    f"checkpoints/step-000000{step}/{name}" for step in ("08", "12") for name in CHECKPOINT_FILES
]


def test_the_list_of_files_is_complete(trained):
    found = {
        path.relative_to(trained.run_dir).as_posix()
        for path in trained.run_dir.rglob("*")
        if path.is_file()
    }
    assert found == set(RUN_FILES)


@pytest.mark.fault(
    "training",
    "A byte or a line of any file in a finished cell's folder changes, or the file is lost.",
    "The file is named; training the cell again ends with the same model, history and record, byte"
    " for byte.",
)
@pytest.mark.parametrize("harm", DAMAGES)
@pytest.mark.parametrize("name", RUN_FILES)
def test_a_second_call_mends_any_file(name, harm, cell, trained):
    before = {path: path.read_bytes() for path in cell.run_dir.rglob("*") if path.is_file()}
    harm(cell.run_dir / name)
    assert cell.train() == 0
    for path, content in before.items():
        if "checkpoints" not in path.parts and path.name not in ("run.json", ".lock"):
            assert path.read_bytes() == content, path
    run, expected = (read_sealed(one.run_dir / "run.json") for one in (cell, trained))
    assert {key: run[key] for key in run if key != "train"} == {
        key: expected[key] for key in run if key != "train"
    }


@pytest.mark.parametrize(
    "lost",
    [
        ["run.json", "history.jsonl", "checkpoints"],
        [
            "model/model.safetensors",
            "checkpoints/step-00000012/state.json",
            "checkpoints/step-00000008/.metadata",
        ],
        ["run.json", "history.jsonl", "checkpoints/step-00000012/history.jsonl"],
        ["cell.json", "run.json", "history.jsonl", "model", "checkpoints"],
    ],
)
@pytest.mark.fault(
    "training",
    "a finished cell loses its model and its last checkpoints, or its record and its history",
    "training it again does the steps that are lost and ends with the same model; only times"
    " differ",
)
def test_a_second_call_mends_damage_to_several(lost, cell, trained):
    for name in lost:
        path = cell.run_dir / name
        shutil.rmtree(path) if path.is_dir() else flip(path)
    assert cell.train() == 0
    assert cell.weights() == trained.weights()
    assert cell.losses() == trained.losses()
    assert [json.loads(line)["step"] for line in cell.history().splitlines()] == list(
        range(1, STEPS + 1)
    )


def test_a_finished_cell_is_kept_and_nothing_is_written(cell, capsys):
    def times() -> dict[Path, int]:
        return {
            path: path.stat().st_mtime_ns
            for path in cell.run_dir.rglob("*")
            if path.name != ".lock"
        }

    before = times()
    assert cell.train() == 0
    assert times() == before
    assert f"{cell.cell.id}: kept, trained before" in capsys.readouterr().err


def test_a_finished_cell_needs_no_checkpoint(cell, capsys):
    shutil.rmtree(cell.run_dir / "checkpoints")
    assert cell.train() == 0
    assert f"{cell.cell.id}: kept, trained before" in capsys.readouterr().err


def test_the_command_keeps_a_finished_cell_without_starting_torch(cell, tiny_study, make_workspace):
    workspace = make_workspace(settings_of(tiny_study))
    run_dir = workspace.run_dir(cell.cell.id)
    run_dir.parent.mkdir(parents=True)
    cell.run_dir.rename(run_dir)
    program = (
        "import sys; from coupled_adam_bench.cli import main; print(main(sys.argv[1:]), 'torch' in"
        " sys.modules)"
    )
    command = [sys.executable, "-c", program, *workspace.command(cell.cell.id)]
    result = subprocess.run(command, cwd=workspace.folder, capture_output=True, text=True)
    assert result.stdout == "0 False\n", result.stderr
    assert result.stderr == f"{cell.cell.id}: kept, trained before\n"
    flip(run_dir / "history.jsonl")
    result = subprocess.run(command, cwd=workspace.folder, capture_output=True, text=True)
    assert result.stdout == "0 True\n", result.stderr
    assert "history.jsonl: SHA-256 " in result.stderr
    assert "made anew from the checkpoints" in result.stderr


def test_a_cell_of_other_data_is_not_kept(cell, trained, tmp_path):
    run = read_sealed(cell.run_dir / "run.json")
    write_sealed(
        cell.run_dir / "run.json", run | {"data_sha256": run["data_sha256"] | {"train": "other"}}
    )
    assert cell.train() == 0
    assert read_sealed(cell.run_dir / "run.json")["data_sha256"] == run["data_sha256"]


@pytest.mark.fault(
    "training",
    "history.jsonl is cut, damaged or deleted while a cell is stopped",
    "it comes back from the checkpoint, to the last row",
)
@pytest.mark.parametrize("harm", [*DAMAGES, lambda path: path.write_text("")])
def test_a_resumed_cell_has_its_whole_history(harm, stopped, trained):
    begun = stopped.history()
    harm(stopped.run_dir / "history.jsonl")
    assert stopped.train() == 0
    assert stopped.history().startswith(begun)
    assert stopped.losses() == trained.losses()
    assert stopped.weights() == trained.weights()


def unlist_history(path: Path) -> None:
    checksums = read_sealed(path / "checksums.json")
    del checksums["history.jsonl"]
    write_sealed(path / "checksums.json", checksums)


def unseal(path: Path) -> None:
    write_json(path / "checksums.json", read_sealed(path / "checksums.json"))


@pytest.mark.fault(
    "training",
    "the checksums in a checkpoint are empty, cut or edited",
    "the checkpoint is named and passed over for the one before it; the cell ends with the same"
    " bytes",
)
@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (
            lambda path: write_sealed(path / "checksums.json", {}),
            "checksums.json does not list state.json",
        ),
        (unlist_history, "checksums.json does not list history.jsonl"),
        (unseal, "checksums.json: its contents do not match its own SHA-256"),
        (lambda path: flip(path / "checksums.json"), "checksums.json: "),
        (lambda path: (path / "checksums.json").write_text("[[["), "not valid JSON"),
        (lambda path: flip(path / ".metadata"), "the SHA-256 of .metadata differs"),
        (lambda path: (path / "state.json").unlink(), "state.json is missing"),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_passed_over(
    harm,
    reason,
    stopped,
    trained,
    capsys,
):
    path = newest(stopped)
    assert path.name == "step-00000007"
    harm(path)
    assert reason in str(damage(path))
    assert stopped.train() == 0
    error = capsys.readouterr().err
    assert "step-00000007: damaged (" in error
    assert reason in error
    assert stopped.weights() == trained.weights()
    assert stopped.losses() == trained.losses()
    assert [path.name for path in checkpoints(stopped.run_dir / "checkpoints")] == [
        "step-00000012",
        "step-00000008",
    ]


@pytest.mark.fault(
    "training",
    "checkpoints of another cell lie beside or in place of those of a stopped cell",
    "they are named and passed over, and the cell ends with the same bytes",
)
def test_checkpoints_of_another_cell(
    stopped,
    trained,
    monkeypatch,
    capsys,
):
    for step in (90, 91):
        foreign = shutil.copytree(
            newest(trained), stopped.run_dir / f"checkpoints/step-000000{step}"
        )
        state = read_json(foreign / "state.json") | {"identity": {"cell": "another"}}
        write_json(foreign / "state.json", state)
        sums = read_sealed(foreign / "checksums.json")
        write_sealed(
            foreign / "checksums.json", sums | {"state.json": sha256_file(foreign / "state.json")}
        )
    stop_at(stopped, 9, monkeypatch)
    assert stopped.train() == RESUME_ME
    monkeypatch.undo()
    assert "step-00000091: belongs to {'cell': 'another'}, not to" in capsys.readouterr().err
    found = [path.name for path in checkpoints(stopped.run_dir / "checkpoints")]
    assert found == [f"step-000000{step}" for step in (91, 90, 10, "08")]
    assert stopped.train() == 0
    assert stopped.weights() == trained.weights()
    assert stopped.losses() == trained.losses()


@pytest.mark.fault(
    "training",
    "a checkpoint may not be read by this user",
    "the job stops with a sentence that names it, and nothing is trained from its beginning",
)
def test_a_checkpoint_that_may_not_be_read_is_named(stopped, monkeypatch):
    path = newest(stopped)
    open_file = Path.open

    def refuse(self: Path, *arguments: Any, **options: Any) -> Any:  # root may read everything
        if path in self.parents:
            raise PermissionError(13, "Permission denied", str(self))
        return open_file(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(
        CheckpointError, match=r"step-00000007: cannot read the checkpoint \(.*Permission denied"
    ):
        stopped.train()


@pytest.mark.parametrize("name", ["run.json", "history.jsonl", None])
def test_a_diverged_cell_is_kept_or_diverges_again(
    name,
    tiny_study,
    tiny_data,
    tmp_path,
    capsys,
):
    settings = settings_of(tiny_study, warmup_steps=0, grad_clip=1e30)
    settings["models"][0]["learning_rate"] = 1e25
    cell = Cell(make_plan(parse_study(settings)), tiny_data, tmp_path)
    assert cell.train() == 0
    before = read_sealed(cell.run_dir / "run.json")
    assert before["status"] == "diverged"
    history = [json.loads(line)["step"] for line in cell.history().splitlines()]
    if name is not None:
        flip(cell.run_dir / name)
    assert cell.train() == 0
    after = read_sealed(cell.run_dir / "run.json")
    assert [after[key] for key in ("status", "reason", "step")] == [
        before[key] for key in ("status", "reason", "step")
    ]
    assert [json.loads(line)["step"] for line in cell.history().splitlines()] == history
    assert ("kept, trained before" in capsys.readouterr().err) == (name is None)


def test_a_trunk_has_its_whole_history_again(tiny_study, tiny_data, tmp_path):
    settings = settings_of(tiny_study, schedule="wsd")
    settings["grid"][0]["tokens"] = [{"steps": 10}, {"steps": 20}]
    plan = make_plan(parse_study(settings))
    (trunk,) = plan.trunks.values()
    execution, folder = only(plan).study.execution, tmp_path / trunk.run.id
    first, second = sorted(trunk.prefixes.values(), key=lambda part: part.steps)
    assert train(first, execution, tiny_data, folder, ALONE, trunk=True) == 0
    (folder / "history.jsonl").unlink()
    assert train(second, execution, tiny_data, folder, ALONE, trunk=True) == 0
    steps = [
        json.loads(line)["step"] for line in (folder / "history.jsonl").read_text().splitlines()
    ]
    assert steps == list(range(1, second.steps + 1))
    flip(folder / "history.jsonl")
    assert train(first, execution, tiny_data, folder, ALONE, trunk=True) == 0
    lines = (folder / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == steps
    assert (
        read_sealed(folder / paths.branch_file(trunk.run.id, first.steps).name)["status"]
        == "completed"
    )


@pytest.mark.fault(
    "text and data",
    "the tokenizer beside the token bins is damaged when a model is exported with it",
    "training stops with its name, the data are prepared anew, and the next start exports the"
    " model",
)
def test_a_damaged_tokenizer_does_not_get_into_a_model(cell, trained, tmp_path):
    cell.data = Path(shutil.copytree(cell.data, tmp_path / cell.data.name))
    (cell.run_dir / "run.json").unlink()
    whole = (cell.data / "tokenizer" / "tokenizer.json").read_bytes()
    flip(cell.data / "tokenizer" / "tokenizer.json")
    with pytest.raises(
        ValueError, match=r"tokenizer\.json: SHA-256 .*start again: it will be prepared anew"
    ):
        cell.train()
    assert not (cell.run_dir / "run.json").exists()
    (cell.data / "tokenizer" / "tokenizer.json").write_bytes(whole)
    (cell.data / "meta.json.damaged").rename(cell.data / "meta.json")
    assert cell.train() == 0
    assert cell.weights() == trained.weights()


@pytest.mark.fault(
    "settings",
    "execution.train_threads is far more than the processors there are",
    "the job stops before it starts them, and names the setting and the processors",
)
def test_threads_that_would_take_the_machine_down_are_refused(cell, monkeypatch, capsys):
    (cell.run_dir / "run.json").unlink()
    n_processors = len(os.sched_getaffinity(0))
    cell.execution = cell.execution.model_copy(update={"train_threads": 10**6})
    with pytest.raises(
        ValueError,
        match=rf"execution\.train_threads: 1000000, .* {n_processors} processors; at most",
    ):
        cell.train()
    before = torch.get_num_threads()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    try:
        cell.execution = cell.execution.model_copy(update={"train_threads": 2})
        assert cell.train() == 0
    finally:
        torch.set_num_threads(before)
    assert (
        "execution.train_threads: 2 threads on 1 processors are slower than 1"
        in capsys.readouterr().err
    )


def test_what_is_in_a_checkpoint(trained):
    path = newest(trained)
    assert set(read_sealed(path / "checksums.json")) == {*CHECKPOINT_FILES} - {"checksums.json"}
    assert (path / "history.jsonl").read_text() == trained.history()
    assert read_json(path / "state.json")["step"] == STEPS
