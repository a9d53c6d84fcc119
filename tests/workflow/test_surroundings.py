"""Faults of what surrounds a study: its file is edited, files come late, the clock jumps, others share its results."""

import csv
import json
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from finished import SNAKEMAKE, outputs, small, write
from starts import begin, finish, snakemake

from coupled_adam_bench.store.runs import read_history
from coupled_adam_bench.study.config import parse_study
from coupled_adam_bench.study.plan import make_plan

NIGHTLY = pytest.mark.nightly
PRELOADS = Path(__file__).parents[1] / "preloads"


def cells_of(settings: dict[str, Any]) -> set[str]:
    return set(make_plan(parse_study(settings)).cells)


def cells_in_results(folder: Path) -> set[str]:
    with (folder / "results/tiny/results.csv").open(newline="") as file:
        return {row["cell"] for row in csv.DictReader(file)}


# ---- the study is edited ----


@NIGHTLY
@pytest.mark.fault(
    "settings",
    "a study is edited while its jobs run and wait",
    "the run ends as it began; the next start gives the results of the edited study, byte for byte",
)
def test_a_study_that_is_edited_while_it_runs(finished, tmp_path, tiny_study):
    edited = small(tiny_study())
    old = small(tiny_study())
    old["grid"][0] |= {"tokens": [{"steps": 20}, {"steps": 40}], "seeds": [1, 3]}
    write(tmp_path, old)
    process = begin(tmp_path)
    write(tmp_path, edited)
    assert process.wait(300) == 0, (tmp_path / "said.txt").read_text()
    assert cells_in_results(tmp_path) == cells_of(old)
    records = {path: path.read_bytes() for path in tmp_path.glob("results/runs/*/run.json")}
    finish(tmp_path, "tables")
    assert outputs(tmp_path) == outputs(finished)
    assert {path: path.read_bytes() for path in records} == records


@pytest.mark.fault(
    "cluster",
    "a study is edited while a job of it waits in the queue",
    "the job does the work that it was sent for, by the plan of its run",
)
def test_a_study_that_is_edited_while_a_job_waits(copy):
    evaluations = set(copy.glob("results/runs/*/evaluations/embeddings-*.json"))
    for path in (*evaluations, copy / "results/tiny/evaluation/batch-000.embeddings.done"):
        path.unlink()
    settings = yaml.safe_load((copy / "study.yaml").read_text())
    settings["grid"][0]["seeds"] = [1, 3]
    settings["execution"]["evaluation_cells_per_job"] = 2
    write(copy, settings)
    job = ["--mode", "remote", "--target-jobs", "embeddings:batch=batch-000", "--nolock", "--force", "--no-hooks"]
    said = finish(copy, *job, "--allowed-rules", "embeddings", "--logger-study-full")
    assert set(copy.glob("results/runs/*/evaluations/embeddings-*.json")) == evaluations, said


# ---- what the machines do ----


@pytest.fixture(scope="session")
def preload(tmp_path_factory) -> Callable[[str], dict[str, str]]:
    """Return a function that compiles a file of ``preloads`` and returns the variables that load it into processes."""

    def preload(name: str) -> dict[str, str]:
        library = tmp_path_factory.mktemp("preloads") / f"{name}.so"
        source = PRELOADS / f"{name}.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        return {"LD_PRELOAD": str(library)}

    if shutil.which("cc") is None:
        if os.environ.get("CAB_REQUIRE_TOOLS") == "1":
            pytest.fail("no C compiler is installed, and CAB_REQUIRE_TOOLS=1")
        pytest.skip("no C compiler (Debian: gcc)")
    return preload


@NIGHTLY
@pytest.mark.fault(
    "cluster",
    "a shared file system shows files late",
    "jobs wait for them as long as Snakemake does (`--latency-wait`); the tables are the same",
)
def test_files_that_come_late(finished, preload, tmp_path, tiny_study, monkeypatch):
    records = ("meta.json", "run.json", *(f"{digit}.json" for digit in "0123456789abcdef"))  # evaluations end in a hash
    late = ":".join([".done=3", *(f"{name}=30" for name in records)])
    for name, value in (preload("late_files") | {"CAB_LATE_FILES": late}).items():
        monkeypatch.setenv(name, value)
    write(tmp_path, small(tiny_study()))
    finish(tmp_path, "tables", "--latency-wait", "60")
    assert outputs(tmp_path) == outputs(finished)


@NIGHTLY
@pytest.mark.fault(
    "cluster",
    "the clock jumps back by a day while a study runs",
    "the tables are the undisturbed ones; the next start trains nothing",
)
def test_a_clock_that_jumps(finished, preload, tmp_path, tiny_study, monkeypatch):
    offset = tmp_path / "offset"
    offset.write_text("0")
    for name, value in (preload("jumping_clock") | {"CAB_CLOCK_OFFSET": str(offset)}).items():
        monkeypatch.setenv(name, value)
    settings = small(tiny_study())
    settings["execution"]["log_every"] = 1
    write(tmp_path, settings)
    began = time.monotonic()
    process = begin(tmp_path)
    offset.write_text(str(-24 * 3600))
    assert process.wait(300) == 0, (tmp_path / "said.txt").read_text()
    took = time.monotonic() - began
    assert outputs(tmp_path) == outputs(finished)
    histories = [read_history(path) for path in tmp_path.glob("results/runs/*/history.jsonl")]
    times = [row["time"] for history in histories for row in history]
    assert max(times) - min(times) > 23 * 3600  # the clock has jumped while a cell was trained
    assert all(row["tokens_per_second"] > 0 and row["seconds_left"] >= 0 for history in histories for row in history)
    for path in tmp_path.glob("results/runs/*/run.json"):
        assert 0 < json.loads(path.read_text())["train"]["seconds"] < took
    rng = random.Random(0)
    for path in tmp_path.glob("results/**/*"):
        if path.is_file():
            at = time.time() + rng.uniform(-24, 24) * 3600
            os.utime(path, (at, at))
    for name in ("results.csv", "tables/table1.tex"):
        (tmp_path / "results/tiny" / name).unlink()
    said = finish(tmp_path, "tables", "--logger-study-full")
    assert "files had a time in the future" in said
    assert "rule train_cells:" not in said
    assert outputs(tmp_path) == outputs(finished)
    assert "Nothing to be done" in snakemake(tmp_path, "tables", "-n").stdout


# ---- other users ----

# Root without its rights over the files of others: a user of the group that files belong to, and not their owner.
AS_ANOTHER_USER = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search,-fowner"]
NEEDS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="root alone can act as another user"
)


def start_as_another_user(folder: Path, *arguments: str, umask: int = 0o002) -> subprocess.CompletedProcess[str]:
    command = [*AS_ANOTHER_USER, *SNAKEMAKE, "results/tiny/results.csv", "--configfile", "study.yaml", *arguments]
    return subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, umask=umask
    )


def give_away(folder: Path, old: int, new: int) -> None:
    """Give the files that a user owns to another one; their group and their modes stay."""
    for path in (folder, *folder.rglob("*")):
        if path.lstat().st_uid == old:
            os.chown(path, new, -1, follow_symlinks=False)


def open_to_group(folder: Path) -> None:
    """Do what the owner does so that a group can work in a folder: ``chmod -R g+rwX``, with ``g+s`` for folders."""
    subprocess.run(["chmod", "-R", "g+rwX", folder], check=True)
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(path.stat().st_mode | stat.S_ISGID)


def assert_is_refused(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 1
    assert re.search(r"results/runs/\S+: you may not read this folder\..* `chmod -R g\+rwX results`", result.stdout)
    assert "Traceback" not in result.stdout


@NEEDS_ROOT
@pytest.mark.fault(
    "several users",
    "A folder of the results was written by a user whose umask lets nobody else read it.",
    "A sentence names the folder and says what its owner and the users type.",
)
def test_a_folder_that_may_not_be_read(copy):
    run = next(copy.glob("results/runs/*"))
    os.chown(run, 65534, -1)
    run.chmod(0o700)
    assert_is_refused(start_as_another_user(copy, "-n"))


@NIGHTLY
@NEEDS_ROOT
@pytest.mark.fault(
    "several users",
    "three users work in one results folder, one after the other, the second under a umask of 077",
    "each keeps what the others have trained; one who may not write is refused with the name of the folder",
)
def test_users_who_share_results(finished, copy):
    settings = yaml.safe_load((copy / "study.yaml").read_text())
    more = json.loads(json.dumps(settings))
    more["grid"][0]["seeds"].append(3)
    results = copy / "results"
    give_away(results, 0, 65533)
    open_to_group(results)
    write(copy, more)
    result = start_as_another_user(copy, "--cores", "2", umask=0o077)
    assert result.returncode == 0, result.stdout
    assert cells_in_results(copy) == cells_of(more)
    records = {path: path.read_bytes() for path in copy.glob("results/runs/*/run.json")}
    give_away(results, 0, 65534)
    assert_is_refused(start_as_another_user(copy, "--cores", "2"))
    open_to_group(results)
    for study, arguments in ((more, ["-n"]), (settings, ["--cores", "2"])):
        write(copy, study)
        result = start_as_another_user(copy, *arguments)
        assert result.returncode == 0, result.stdout
        assert study is settings or "Nothing to be done" in result.stdout
    assert outputs(copy)["results.csv"] == outputs(finished)["results.csv"]
    assert {path: path.read_bytes() for path in records} == records


OWN_OPTIMIZER = """
import torch


class Mine(torch.optim.SGD):
    def __init__(self, params, lr, weight_decay=0.0):
        super().__init__(params, lr=lr, weight_decay=weight_decay)
"""


@pytest.mark.fault(
    "settings",
    "the working folder has files with the names of Python's modules, such as `random.py`",
    "no job takes them for Python's; own optimizers and metrics in that folder are found",
)
def test_own_files_with_names_of_python_s_modules(tmp_path, tiny_study):
    for name in ("random", "statistics", "string", "operator", "keyword", "types", "queue", "json", "secrets", "torch"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('this is the user\\'s own {name}')")
    (tmp_path / "own_optimizer.py").write_text(OWN_OPTIMIZER)
    (tmp_path / "own_metric.py").write_text("def measure(embeddings):\n    return float(len(embeddings))\n")
    settings = small(tiny_study())
    own = {"name": "custom", "path": "own_optimizer.Mine", "key": "mine", "label": "Mine"}
    settings["grid"][0] |= {"table": None, "optimizers": [own], "seeds": [1]}
    metric = {"name": "n", "path": "own_metric.measure", "symbol": "n", "higher_is_better": True}
    settings["evaluation"]["metrics"] = [metric]
    settings["execution"] |= {"train_processes": 2, "data_threads": 2}
    write(tmp_path, settings)
    # Whole starts: where Python looks for modules is decided before any of our code.
    command = [*SNAKEMAKE, "evaluate", "--cores", "2", "--configfile", "study.yaml"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert list(tmp_path.glob("results/runs/*/evaluations/embeddings-*.json"))
    command = [sys.executable, "-m", "coupled_adam_bench", "measure", *map(str, tmp_path.glob("results/runs/*/model"))]
    (tmp_path / "operator.py").unlink()  # Python itself needs these before it is told where to look
    for name in ("keyword", "types", "queue"):
        (tmp_path / f"{name}.py").unlink()
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
