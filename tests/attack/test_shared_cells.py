"""Studies over the same cells, trained, measured, damaged and collected in any order: each keeps
its own numbers."""

import csv
import random
from pathlib import Path
from typing import Any

import pytest
from finished import draws

from coupled_adam_bench.cli import main
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.settings import parse_study

ACTIONS = 10


@pytest.fixture(scope="module")
def plans(tiny_study) -> dict[str, Plan]:
    """Three studies: the second measures the cells of the first otherwise, the third has half of
    them and one more."""
    first, second, third = (tiny_study(study=name) for name in ("first", "second", "third"))
    for study, seeds in ((first, [1, 2]), (second, [1, 2]), (third, [2, 3])):
        study["grid"][0] |= {"tokens": [{"steps": 6}], "seeds": seeds}
        study["training"]["warmup_steps"] = 2
    second["evaluation"] = {
        "downstream": {"tasks": "synthetic", "limit": 5, "num_fewshot": 1},
        "word_similarity": [],
        "test_loss": {"split": "val"},
    }
    third["evaluation"]["leading_space"] = False
    return {study["study"]: make_plan(parse_study(study)) for study in (first, second, third)}


def call(plan: Plan, stage: str, *options: str) -> None:
    file = paths.study_dir(plan.name) / "plan.json"
    write_sealed(file, plan.to_json())
    assert main([stage, "--plan", str(file), *options]) == 0


def run(plan: Plan) -> None:
    """Do what the workflow does for a study whose markers are gone."""
    call(plan, "prepare")
    call(plan, "train", "--cells", *plan.cells, "--device", "cpu")
    for stage in next(iter(plan.studies.values())).stages:
        done = str(paths.study_dir(plan.name) / f"{stage.name}.done")
        call(
            plan,
            stage.name.replace("_", "-"),
            "--cells",
            *plan.cells,
            "--done",
            done,
            "--device",
            "cpu",
        )


def collected(plan: Plan, *flags: str) -> bytes:
    file = paths.study_dir(plan.name) / "results.csv"
    call(
        plan,
        "report",
        "--templates",
        str(Path(__file__).parents[2] / "templates"),
        "--only",
        "tables",
        *flags,
    )
    return file.read_bytes()


def rows(results: bytes) -> dict[tuple[Any, ...], str]:
    table = csv.DictReader(results.decode().splitlines())
    return {
        tuple(value for key, value in row.items() if key not in ("value", "model")): row["value"]
        for row in table
    }


@pytest.fixture(scope="module")
def alone(plans, tmp_path_factory) -> dict[str, bytes]:
    """The results of each study in a folder of its own."""
    results = {}
    for name, plan in plans.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path_factory.mktemp(name))
            run(plan)
            results[name] = collected(plan)
    return results


@pytest.mark.fault(
    "results",
    "Studies share cells and measure them under different settings; they are run, collected in"
    " whole or in part, damaged and run again in any order.",
    "The results of each are byte for byte those of the study alone.",
)
@pytest.mark.parametrize(
    "draw", draws("CAB_ORDER_DRAWS", by_night=3, by_day=1)
)  # `make attack` draws 100
def test_studies_over_the_same_cells_in_a_random_order(draw, plans, alone, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = random.Random(draw)
    whole: set[str] = set()  # studies all of whose evaluations are there
    for _ in range(ACTIONS):
        name = rng.choice(sorted(plans))
        action = rng.choice(("run", "run", "report", "lose"))
        if action == "run":
            run(plans[name])
            whole.add(name)
        elif action == "lose" and (
            files := sorted(Path("results/runs").glob("*/evaluations/*.json"))
        ):
            rng.choice(files).unlink()
            whole.clear()
        elif action == "report" and Path("results/runs").is_dir():
            mine, expected = rows(collected(plans[name], "--partial")), rows(alone[name])
            differing = {key: value for key, value in mine.items() if value != expected.get(key)}
            assert set(differing.values()) <= {"NaN"}, differing
        for other in sorted(whole):
            assert collected(plans[other]) == alone[other]
