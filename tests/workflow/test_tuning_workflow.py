"""A study that tunes, through real Snakemake: from candidates to the table in one call, again, with
another grid."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import starts
import yaml
from finished import copied
from starts import finish, make_planned_tables, make_tables, snakemake

from coupled_adam_bench.study.plan.preregistration_record import read_record

TUNING = pytest.mark.xdist_group("tuning")


def jobs(folder: Path) -> dict[str, int]:
    """Return how many jobs of each rule a dry run of the tables announces."""
    return starts.jobs(snakemake(folder, "tables", "-n"), target="tables")


def write(folder: Path, settings: dict[str, Any], **rates: list[float]) -> None:
    tune = {
        "seeds": [11],
        "grids": {key: {"learning_rate": values} for key, values in rates.items()},
    }
    settings["grid"][0] |= {"seeds": [1, 2], "tokens": [{"steps": 20, "label": "20"}], "tune": tune}
    settings["execution"] |= {"train_cells_per_job": 2, "evaluation_cells_per_job": 2}
    (folder / "study.yaml").write_text(yaml.safe_dump(settings))


def choices(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the chosen settings by optimizer, from the records of the choices of the study as it
    is."""
    found = {}
    for path in sorted(
        (folder / "results/tiny/tuning").glob("*.json"), key=lambda path: path.stat().st_mtime
    ):
        record = json.loads(path.read_text())
        found[path.stem.split("_", 2)[2].rpartition("_")[0]] = record["candidates"][
            record["chosen"]
        ]["settings"]
    return found


def runs(folder: Path) -> list[Path]:
    return sorted((folder / "results/runs").iterdir())


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, tiny_study: Callable[..., dict[str, Any]]
) -> Path:
    """A working folder in which the tables of a study that tunes are made."""
    folder = tmp_path_factory.mktemp("tuning")
    write(folder, tiny_study(), adamw=[0.0001, 0.05], coupled_adam=[0.0001, 0.05])
    finish(folder, "evaluate")
    make_planned_tables(folder)
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return copied(finished, tmp_path / "copy")


@TUNING
def test_one_call_tunes_trains_and_evaluates_for_the_table(finished: Path) -> None:
    assert choices(finished) == {
        "adamw": {"learning_rate": 0.05},
        "coupled_adam": {"learning_rate": 0.05},
    }
    with (finished / "results/tiny/results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["optimizer"], row["seed"]) for row in rows} == {
        (optimizer, seed) for optimizer in ("adamw", "coupled_adam") for seed in "12"
    }
    for run in {row["cell"] for row in rows}:
        cell = json.loads((finished / "results/runs" / run / "cell.json").read_text())
        assert (cell["model"]["learning_rate"], cell["seed"] in (1, 2)) == (0.05, True)
    assert "Coupled Adam (tuned)" in (finished / "results/tiny/tables/table1.html").read_text()
    evaluated = {
        path.name: {p.name.split("-")[0] for p in path.glob("evaluations/*.json")}
        for path in runs(finished)
    }
    stages = [{"validation_loss"}] * 4 + [{"downstream", "embeddings", "test_loss"}] * 4
    assert sorted(map(sorted, evaluated.values())) == sorted(map(sorted, stages))


@TUNING
def test_a_second_start_does_nothing(finished: Path) -> None:
    assert jobs(finished) == {"report_of_study": 1}  # of which the tables alone are made
    assert "Nothing to be done" in finish(finished, "evaluate")


@TUNING
def test_a_plan_that_is_stated_after_the_runs_is_recorded_as_such(copy: Path) -> None:
    loss = {
        "name": "loss",
        "table": "table1",
        "metric": "loss",
        "better": "coupled_adam",
        "than": "adamw",
    }
    (copy / "plan.yaml").write_text(yaml.safe_dump({"hypotheses": [loss], "seeds": [1, 2]}))
    settings = yaml.safe_load((copy / "study.yaml").read_text()) | {"stated": "plan.yaml"}
    for warmup_steps in (5, 6):
        settings["training"]["warmup_steps"] = warmup_steps
        (copy / "study.yaml").write_text(yaml.safe_dump(settings))
        finish(copy, "plan")
    first, second = read_record(copy / "results/tiny")
    assert (len(first["begun"]), first["n_cells"], len(second["begun"]), second["n_cells"]) == (
        4,
        4,
        4,
        8,
    )


@TUNING
@pytest.mark.fault(
    "results",
    "the choice of a tuning is damaged, edited, or of other candidates",
    "the next start sets it aside and chooses again; the table is byte for byte the same",
)
def test_a_damaged_choice_is_made_again(copy: Path) -> None:
    path = next((copy / "results/tiny/tuning").glob("*_adamw_*.json"))
    path.write_text(path.read_text().replace('"chosen": 1', '"chosen": 0'))
    table = (copy / "results/tiny/tables/table1.tex").read_bytes()
    result = snakemake(copy, str(path.relative_to(copy)), "evaluate")
    assert result.returncode == 0, result.stdout
    assert "do not match its own SHA-256" in result.stdout
    make_tables(copy)
    assert choices(copy)["adamw"] == {"learning_rate": 0.05}
    assert len(runs(copy)) == 8
    assert (copy / "results/tiny/tables/table1.tex").read_bytes() == table


@TUNING
@pytest.mark.fault(
    "results",
    "all candidates of a tuning diverge",
    "its job names them; the other optimizers go on, and partial tables have a gap",
)
def test_another_grid_tunes_again_and_candidates_that_all_diverge_stop_only_their_row(
    copy: Path, tiny_study: Callable[..., dict[str, Any]]
) -> None:
    before = {path: (path / "run.json").read_bytes() for path in runs(copy)}
    write(copy, tiny_study(), adamw=[0.0001, 0.04], coupled_adam=[1e38, 2e38])
    assert jobs(copy)["choose"] == 2
    result = snakemake(copy, "tables")
    assert result.returncode == 1
    assert "no candidate can be chosen" in result.stdout
    assert "learning_rate 1e+38: loss or gradient not finite in step" in result.stdout
    assert {path: (path / "run.json").read_bytes() for path in before} == before
    rates = [
        json.loads((path / "cell.json").read_text())["model"]["learning_rate"]
        for path in runs(copy)
    ]
    assert rates.count(0.0001) == 2  # those that were trained before
    assert rates.count(0.04) == 3  # a candidate, and both cells of the row for which one is chosen
    assert rates.count(1e38) == rates.count(2e38) == 1
    make_planned_tables(copy, "--config", "partial=true")
    with (copy / "results/tiny/results.csv").open() as file:
        loss = [
            (row["optimizer"], row["value"] == "NaN")
            for row in csv.DictReader(file)
            if row["metric"] == "loss"
        ]
    assert loss == [("adamw", False)] * 2 + [("coupled_adam", True)] * 2
