"""The study as Snakemake runs it: what is made again, what is kept, and what a kill leaves."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from conftest import command_of, snakemake
from tiny import changed, tiny_study

from coupled_adam_bench.study.plan import make_plan, read_plan
from coupled_adam_bench.study.study import parse_study

RESULTS = Path("results/tiny")
RUNS = Path("results/runs")
# What torchrun, a notebook and a user's shell leave behind, and what no job may read.
SURROUNDINGS = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "3",
    "MASTER_ADDR": "192.0.2.1",
    "MASTER_PORT": "1",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "OMP_NUM_THREADS": "7",
}


def times() -> dict[Path, int]:
    """Return the times of all files but Snakemake's own."""
    return {
        file: file.stat().st_mtime_ns
        for file in Path().rglob("*")
        if ".snakemake" not in file.parts
    }


def numbers(cells: set[str]) -> pd.DataFrame:
    """Return the rows of some cells in ``results.csv``, as text."""
    found = pd.read_csv(RESULTS / "results.csv", dtype=str, keep_default_na=False)
    return found[found["cell"].isin(cells)].reset_index(drop=True)


def write(study: dict[str, Any]) -> None:
    Path("study.yaml").write_text(yaml.safe_dump(study))


def kill_while_it_trains(cell: str) -> None:
    """Start Snakemake, and kill it with all its jobs once a cell has begun."""
    begun = RUNS / cell / "history.jsonl"
    # Its output goes to a file: nobody reads a pipe.
    with Path("killed.log").open("w") as log:
        process = subprocess.Popen(
            command_of(Path()), stdout=log, stderr=log, start_new_session=True
        )
    while not begun.exists():
        assert process.poll() is None, Path("killed.log").read_text()
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_a_study_ends_in_tables_and_a_report(finished: Path) -> None:
    made = {str(file.relative_to(RESULTS)) for file in RESULTS.rglob("*") if file.is_file()}
    assert {"plan.json", "plan.txt", "results.csv", "tests.csv", "manifest.json"} <= made
    assert {f"tables/table{n}.{end}" for n in (1, 2, 7) for end in ("tex", "html", "md")} <= made
    assert len([name for name in made if not name.startswith("logs/")]) <= 40
    assert (RESULTS / "report/index.html").stat().st_size > 1000
    # The trial shows what was read.
    tried = json.loads((RESULTS / "tried.json").read_text())
    assert tried["text"]["first_tokens"][0] in tried["text"]["first_document"]
    assert {task["n_items"] for task in tried["tasks"]} == {20}
    states = {json.loads(file.read_text())["status"] for file in RUNS.glob("*/run.json")}
    assert states == {"completed", "diverged"}


@pytest.mark.timeout(900)
@pytest.mark.xdist_group("workflow")
def test_only_what_is_missing_is_made_again(copy: Path) -> None:
    before = times()
    again = snakemake(copy)
    assert again.returncode == 0
    assert "Nothing to be done" in again.stdout + again.stderr
    assert times() == before

    # A run is deleted, a seed comes, the test loss is measured on other text, the title changes.
    plan = read_plan(RESULTS / "plan.json")
    deleted = next(iter(plan.cells))
    weights = (RUNS / deleted / "model/model.safetensors").read_bytes()
    old, old_runs = numbers({*plan.cells}), {file: before[file] for file in RUNS.glob("*/run.json")}
    shutil.rmtree(RUNS / deleted)
    study = changed(tiny_study(title="Another title"), "grid.0.seeds", [1, 2, 3, 4])
    study = changed(study, "execution.train_cells_per_job", 4)
    study = changed(study, "evaluation.test_loss", {"split": "val"})
    write(study)
    before = times()
    dry = snakemake(copy, "-n")
    assert dry.returncode == 0
    said = (dry.stdout + dry.stderr).splitlines()
    jobs = dict(line.split() for line in said if len(line.split()) == 2)
    assert (jobs["train_cells"], jobs["evaluate_cells"], jobs["report"]) == ("2", "1", "1")
    assert times() == before

    # A cell cannot be trained: a file lies where its run belongs. The others are.
    study = changed(study, "evaluation.downstream", None)
    write(study)
    new = [cell for cell in make_plan(parse_study(study)).cells if cell not in plan.cells]
    assert [cell.split("_s")[-1][0] for cell in new] == ["4", "4"]
    blocked, other = new
    (RUNS / blocked).write_text("")
    failed = snakemake(copy, "train")
    assert failed.returncode == 1
    assert failed.stderr.count("error: ") == 1  # the end of the job's log, once
    assert (RUNS / other / "run.json").exists()
    assert (RUNS / deleted / "model/model.safetensors").read_bytes() == weights
    (RUNS / blocked).unlink()

    kill_while_it_trains(blocked)
    # A start beside one that works on the study is refused, and its jobs keep their plan.
    write(changed(study, "grid.0.seeds", [7, 8]))
    before = times()
    assert snakemake(copy, "report").returncode == 1
    assert times() == before
    write(study)
    shutil.rmtree(".snakemake/locks")  # as --unlock does, without a start
    done = snakemake(copy, "report", **SURROUNDINGS)
    assert done.returncode == 0, done.stderr
    assert "Another title" in (RESULTS / "report/index.html").read_text()
    # What neither was deleted nor has other settings is as it was.
    now = {file: file.stat().st_mtime_ns for file in old_runs if deleted not in file.parts}
    assert now == {file: old_runs[file] for file in now}
    kept = old[old["metric"].isin(["isotropy", "r_bar", "kappa"])]
    found = numbers({*plan.cells})
    found = found[found["metric"].isin(["isotropy", "r_bar", "kappa"])]
    pd.testing.assert_frame_equal(found.reset_index(drop=True), kept.reset_index(drop=True))
    losses = [
        frame[frame["metric"] == "loss"]["value"].tolist()
        for frame in (old, numbers({*plan.cells}))
    ]
    assert losses[0] != losses[1]


def test_what_is_wrong_ends_a_start_before_its_jobs(copy: Path) -> None:
    write(changed(tiny_study(), "evaluation.word_similarity", [{"name": "own", "file": "own.txt"}]))
    before = times()
    wrong = snakemake(copy, "-n")
    assert wrong.returncode == 1
    told = [line for line in wrong.stderr.splitlines() if "own.txt" in line]
    assert len(told) == 1
    assert told[0].startswith("error: paths.word_similarity")
    assert "train_cells" not in wrong.stdout + wrong.stderr
    assert times() == before
