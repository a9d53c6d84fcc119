"""``merge`` on tiny studies that were trained for real, each with seeds of its own."""

import os
import shutil
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import yaml
from forks import python

from coupled_adam_bench.cli import main
from coupled_adam_bench.store.files import read_sealed, sha256_file, write_sealed
from coupled_adam_bench.store.locks import FolderLock
from coupled_adam_bench.store.paths import branch_file
from coupled_adam_bench.study.plan import Plan, load_plan

PLAN = ["--plan", "results/tiny/plan.json"]
TEMPLATES = str(Path(__file__).parents[3] / "templates")
MADE = ("results.csv", "tests.csv", "tables/table1.tex")


def plan_here() -> Plan:
    return load_plan(Path(PLAN[1]))


def work(plan: Plan) -> None:
    """Do what the rules do with this plan, in the working folder."""
    assert main(["prepare", *PLAN]) == 0
    steps = [(trunk.run.id, step) for trunk in plan.trunks.values() for step in trunk.branches]
    assert (
        main(["train-trunk", *PLAN, "--branches", *(str(branch_file(*branch)) for branch in steps)])
        == 0
    )
    assert main(["train", *PLAN, "--cells", *plan.cells]) == 0
    for stage in plan.studies["tiny"].stages:
        assert (
            main([stage.command, *PLAN, "--cells", *plan.cells, "--done", f"{stage.name}.done"])
            == 0
        )
    if plan.blocks[0].block.table is not None:
        assert main(["report", *PLAN, "--templates", TEMPLATES, "--only", "tables"]) == 0


@pytest.fixture(scope="session")
def plan_in(tiny_study: Any) -> Callable[[Path, list[int]], Plan]:
    """Write the plan of the study with these seeds into a folder, and return it."""

    def write(folder: Path, seeds: list[int]) -> Plan:
        study = tiny_study()
        study["training"] |= {"schedule": "wsd", "warmup_steps": 2}
        study["grid"][0] |= {
            "tokens": [{"steps": 8, "label": "8"}, {"steps": 12, "label": "12"}],
            "seeds": seeds,
        }
        if len(seeds) == 1:  # no table with a test
            del study["grid"][0]["table"]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tiny.yaml").write_text(yaml.safe_dump(study))
        with chdir(folder):
            assert main(["plan", "--study", "tiny.yaml", "--out", PLAN[1]]) == 0
            return plan_here()

    return write


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory, plan_in: Any) -> Path:
    """Three folders in which the study was trained: with seed 1, with seed 2, and with both."""
    root = tmp_path_factory.mktemp("places")
    for name, seeds in (("one", [1]), ("two", [2]), ("whole", [1, 2])):
        plan = plan_in(root / name, seeds)
        with chdir(root / name):
            work(plan)
    return root


@pytest.fixture
def here(places: Path, plan_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the plan for both seeds and nothing trained; beside it copies of the
    other folders."""
    shutil.copytree(places, tmp_path, dirs_exist_ok=True)
    plan_in(tmp_path / "here", [1, 2])
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.fixture
def run(here: Path) -> Path:
    """The first run of the other folder."""
    return sorted((here / "one" / "results" / "runs").iterdir())[0]


@pytest.fixture
def merge(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The function that merges folders, the one with seed 1 by default, and returns what that said;
    it must end with this status."""

    def merge(*folders: str, status: int = 0) -> str:
        assert main(["merge", *(folders or ["../one/results"])]) == status
        return capsys.readouterr().err

    return merge


def test_two_folders_make_one_study(here, merge, capsys):
    said = merge("../one/results", "../two/results")
    assert (
        "../one/results: 6 taken, 0 were here before, 0 left out" in said
    )  # two trunks and four cells
    assert "../two/results: 6 taken, 0 were here before, 0 left out" in said
    trained = {
        path: path.stat().st_mtime_ns for path in Path("results/runs").rglob("*") if path.is_file()
    }
    work(plan_here())
    said = capsys.readouterr().err
    assert said.count("kept, trained before") == 8
    assert said.count("kept, evaluated before with the same settings") == 8 * len(
        plan_here().studies["tiny"].stages
    )
    assert {path: path.stat().st_mtime_ns for path in trained} == trained
    for name in MADE:
        made = Path("results/tiny", name).read_bytes()
        assert made == (here / "whole" / "results" / "tiny" / name).read_bytes(), name
    assert not Path("results/.merging").exists()
    said = merge("../one/results", "../two/results")
    assert "../one/results: 0 taken, 6 were here before, 0 left out" in said


@pytest.mark.fault(
    "several users",
    "`merge` finds a damaged model, history or record in the other folder.",
    "the run is left out, and the others are taken",
)
@pytest.mark.parametrize(
    "name", ["model/model.safetensors", "history.jsonl", "run.json", "cell.json"]
)
def test_a_damaged_run_is_left_out(name, run, merge):
    file = run / name
    file.write_bytes(file.read_bytes()[:-9])
    said = merge(status=1)
    assert f"{os.path.relpath(file.parents[name.count('/')])}: left out: " in said
    assert "5 taken, 0 were here before, 1 left out" in said
    assert not Path("results/runs", run.name).exists()


@pytest.mark.fault(
    "several users",
    "`merge` finds a pipe in the place of a record, in the other folder or in this one.",
    "It is not opened, the run is left out, and the others are taken",
)
@pytest.mark.parametrize(
    ("name", "place"), [("run.json", "there"), ("cell.json", "there"), ("run.json", "here")]
)
def test_a_pipe_in_the_place_of_a_record_is_not_opened(name, place, run, merge):
    if place == "here":
        merge()
        run = Path("results/runs", run.name)
    (run / name).unlink()
    os.mkfifo(run / name)
    said = merge(status=1 if place == "there" else 0)
    if place == "there":
        assert "5 taken, 0 were here before, 1 left out" in said
    else:  # what is not whole here is set aside, and taken anew
        assert f"{run}: not whole, kept as {run.name}.damaged-1" in said


def test_a_run_with_other_bits_does_not_replace_the_one_here(run, merge):
    merge()
    taken = Path("results/runs", run.name, "run.json")
    before = sha256_file(taken)
    write_sealed(run / "run.json", read_sealed(run / "run.json") | {"model_sha256": "0" * 64})
    assert "left out: the run here ended with other bits, and stays" in merge(status=1)
    assert sha256_file(taken) == before


def test_a_run_on_other_data_is_left_out(run, merge):
    record = read_sealed(run / "run.json")
    record["data_sha256"]["train"] = "0" * 64
    write_sealed(run / "run.json", record)
    assert "not the tokens that it was trained on" in merge(status=1)


def test_an_unfinished_run_here_gives_way_unless_it_is_trained(run, merge):
    taken = Path("results/runs", run.name)
    lock = FolderLock(taken)
    lock.acquire()
    (taken / "checkpoints").mkdir()
    assert "a process trains this cell here" in merge(status=1)
    lock.release()
    assert f"{taken}: not whole, kept as {run.name}.damaged-1" in merge()
    assert (taken / "run.json").is_file()


def test_evaluations_of_another_version_are_measured_anew(here, run, merge):
    old, *others = sorted((run / "evaluations").glob("*.json"))
    write_sealed(old, read_sealed(old) | {"version": 0})
    assert "version is 0, not " in merge()
    taken = Path("results/runs", run.name, "evaluations")
    assert sorted(path.name for path in taken.glob("*.json")) == [path.name for path in others]
    whole = here / "whole" / "results" / "runs" / run.name
    shutil.copy(whole / "evaluations" / old.name, old)
    merge()
    assert (taken / old.name).is_file()  # the same run is here, and gets what it lacks


@pytest.mark.fault(
    "several users",
    "Three processes merge the same folder at once.",
    "One after the other works, and all end well: each run is whole, and taken once.",
)
def test_three_merges_at_once(here):
    command = ["-m", "coupled_adam_bench", "merge", "../one/results"]
    processes = [python("pipeline", command, Path(), dict(os.environ)) for _ in range(3)]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    counts = [
        "results: 6 taken, 0 were here before, 0 left out",
        *["results: 0 taken, 6 were here before, 0 left out"] * 2,
    ]
    assert sorted(text.splitlines()[-1].removeprefix("../one/") for text in said) == sorted(counts)
    for run in (here / "one" / "results" / "runs").iterdir():
        files = {
            path.relative_to(run)
            for path in run.rglob("*")
            if path.is_file() and path.name != ".lock"
        }
        taken = Path("results/runs", run.name)
        assert {path.relative_to(taken) for path in taken.rglob("*") if path.is_file()} == files


@pytest.mark.fault(
    "several users",
    "A run in the other folder has a link: to a file of somebody, or to a folder that is not"
    " there.",
    "The run is left out with the name of the link; nothing is read through it, and the others are"
    " taken.",
)
@pytest.mark.parametrize(
    "name", ["model/model.safetensors", "checkpoints/mine", "evaluations/more.json", ""]
)
def test_links_are_not_followed(name, here, run, merge):
    link = run / name
    target = here / "elsewhere"
    if link.exists():
        link.rename(target)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(target)
    said = merge(status=1)
    assert f"{os.path.relpath(link)} is a link, which merge does not follow" in said
    assert "5 taken, 0 were here before, 1 left out" in said


def test_links_among_the_data_are_not_followed(here, merge):
    (data,) = (here / "one" / "results" / "data").iterdir()
    (data / "train.bin").rename(here / "train.bin")
    (data / "train.bin").symlink_to(here / "train.bin")
    assert "train.bin is a link" in merge(status=1)
    assert not Path("results/runs").exists()


@pytest.mark.fault(
    "several users",
    "A record in the other folder is of a form that nobody foresaw.",
    "Its run is left out with the reason, and the others are taken.",
)
def test_one_bad_run_does_not_end_the_others(run, merge):
    odd = {"data_sha256": 7, "model_sha256": [], "step": {}}
    write_sealed(run / "run.json", read_sealed(run / "run.json") | odd)
    write_sealed(run / "cell.json", {"data_id": ["x"]})
    said = merge(status=1)
    assert f"{run.name}: left out: " in said
    assert "5 taken, 0 were here before, 1 left out" in said


def test_what_is_no_results_folder_is_refused(merge):
    said = merge("../one", status=2)
    assert "../one: has no folder runs; give the folder `results` of another place" in said
