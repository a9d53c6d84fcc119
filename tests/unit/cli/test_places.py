"""What stands where a file or a folder of a study belongs, and is none, is named before anything is
read."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from coupled_adam_bench.cli.guard import check_places
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import remove
from coupled_adam_bench.study.plan import Plan


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, pytest.MonkeyPatch.context() as patch:
        patch.chdir(path.parent)  # the path of a socket is short
        server.bind(path.name)


KINDS: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a pipe": os.mkfifo,
    "a socket": socket_at,
}
FOLDERS = {
    "a file": Path.touch,
    "a link to nothing": lambda path: path.symlink_to(path.name),
    "a pipe": os.mkfifo,
}


@pytest.fixture
def places(
    tiny_plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[Path]]:
    """The places of files and of folders of a study."""
    monkeypatch.chdir(tmp_path)
    study, run = paths.study_dir(tiny_plan.name), paths.run_dir(next(iter(tiny_plan.cells)))
    data = paths.data_dir(tiny_plan.data_ids[0])
    files = [
        study / "plan.json",
        study / "results.csv",
        study / "report.done",
        study / ".lock",
        study / "training" / "batch-000.done",
        study / "evaluation" / "batch-000.test_loss.done",
        study / "report" / "index.html",
        study / "tables" / "table1.tex",
        study / "logs" / "report.log",
        run / "run.json",
        run / "history.jsonl",
        run / ".lock",
        run / "model" / "config.json",
        run / "model" / "model.safetensors",
        run / "evaluations" / "test_loss-0123456789.json",
        run / "checkpoints" / "step-00000008" / "state.json",
        data / "train.bin",
        data / "meta.json",
        paths.MLFLOW_DB,
        paths.RESULTS / ".mlflow.lock",
        paths.GPU_LEASES / "0.lock",
    ]
    folders = [
        study,
        study / "tables",
        study / "report",
        study / "logs",
        study / "training",
        run,
        run / "model",
        run / "checkpoints",
        run / "evaluations",
        data,
        data / "tokenizer",
        paths.RUNS,
        paths.GPU_LEASES,
    ]
    return {"files": files, "folders": folders}


@pytest.mark.fault(
    "results",
    "A folder, a link to nothing, a pipe or a socket stands where a file of a study belongs, or a"
    " file where a folder does.",
    "The start names it, without opening it, and ends before the first job.",
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file(places, tiny_plan, kind):
    for path in places["files"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        KINDS[kind](path)
        with pytest.raises(ValueError) as raised:
            check_places(tiny_plan)
        assert (
            str(raised.value)
            == f"something else stands where a file or a folder of this study belongs: {path}"
            f" ({kind}); move or remove it, and start again"
        )
        path.rmdir() if kind == "a folder" else path.unlink()
    check_places(tiny_plan)


@pytest.mark.parametrize("kind", FOLDERS)
def test_what_is_no_folder(places, tiny_plan, kind):
    for path in places["folders"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove(path)  # of the place before
        FOLDERS[kind](path)
        with pytest.raises(ValueError, match=rf": {path} \({kind}\); move or remove it"):
            check_places(tiny_plan)
        path.unlink()


def test_all_places_are_in_one_sentence(places, tiny_plan):
    for path in places["files"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
    with pytest.raises(ValueError) as raised:
        check_places(tiny_plan)
    assert str(raised.value).count("(a folder)") == 10
    assert f" and {len(places['files']) - 10} more; move" in str(raised.value)


def test_what_belongs_there_stays(tiny_plan, places):
    study = paths.study_dir(tiny_plan.name)
    for path in places["files"]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (study / "elsewhere").mkdir()
    (study / "link.json").symlink_to("plan.json")
    (study / "figures").symlink_to("elsewhere")
    for name in ("notes", "gpt2-0.6b_1M", ".step-1.tmp", "results.csv.damaged-1"):
        (study / name).mkdir()
    check_places(tiny_plan)
