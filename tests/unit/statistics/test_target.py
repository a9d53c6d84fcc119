"""Tokens to a target loss and the test against it, by hand and against scipy."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from sections import tables_of

from coupled_adam_bench.results.collect import results_frame
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.target import STATISTIC, below_target, first_reached
from coupled_adam_bench.study.config import parse_study
from coupled_adam_bench.study.plan import Plan, make_plan

HISTORY = [
    {"step": 10, "loss": 3.0},  # not measured
    {"step": 20, "loss": 3.5, "val_loss": 4.0},
    {"step": 40, "loss": 3.5, "val_loss": 3.5},
    {"step": 60, "loss": 3.5, "val_loss": 3.75},
]


@pytest.mark.parametrize(
    ("target", "step", "reason"),
    [
        (4.5, 20.0, ""),
        (4.0, 20.0, ""),  # at the target
        (3.99, 40.0, ""),
        (3.5, 40.0, ""),  # it may leave it again
        (3.4, math.nan, "not reached; the least is 3.5"),
    ],
)
def test_the_first_measured_step_at_or_under_the_target(target, step, reason):
    assert first_reached(HISTORY, target, 60) == (pytest.approx(step, nan_ok=True), 3.75, reason)


def test_runs_without_a_final_loss():
    nan = pytest.approx(math.nan, nan_ok=True)
    assert first_reached(HISTORY[:3], 3.5, 60) == (40.0, nan, "no validation loss at the last step, 60")
    blown = first_reached([{"step": 60, "loss": math.nan, "val_loss": math.nan}], 3.5, 60)
    assert blown == (nan, nan, "no validation loss; no validation loss at the last step, 60")


def test_the_test_against_scipy():
    losses = [3.27, 3.281, 3.276, 3.2755, 3.279]
    found = below_target(losses, 3.28)
    expected = scipy.stats.ttest_1samp(losses, 3.28, alternative="less")
    assert (found["t"], found["p_value"]) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-9)
    assert (found["df"], found["reason"]) == (4.0, "")
    above = below_target([loss + 0.1 for loss in losses], 3.28)
    assert above["p_value"] > 0.99


@pytest.mark.parametrize(
    ("losses", "p", "reason"),
    [
        ([3.0], math.nan, "1 run, the test needs 2"),
        ([3.0, math.nan, 3.1], math.nan, "1 of 3 runs have no final validation loss"),
        ([3.0, 3.0], 0.0, ""),
        ([3.5, 3.5], 1.0, ""),
        ([4.0, 4.0], 1.0, ""),
    ],
)
def test_the_edges_of_the_test(losses, p, reason):
    found = below_target(losses, 3.5)
    assert (found["p_value"], found["reason"]) == (pytest.approx(p, nan_ok=True), reason)


@pytest.fixture
def plan(tiny_study: Any) -> Plan:
    (model,) = tiny_study()["models"]
    models = [model | {"label": "<script> & 100 % _ü_"}]
    return make_plan(parse_study(tiny_study(models=models, statistics={"target_loss": 3.0})))


def write_histories(plan: Plan, runs: Path) -> None:
    """Adam reaches 3 at step 60 with seeds 1 and 2, and not with 3; Coupled Adam at step 30, each seed 0.1 lower."""
    for cell in plan.cells.values():
        adam = cell.optimizer.name == "adamw"
        final = 3.3 - 0.1 * cell.seed if not adam else (2.9 if cell.seed < 3 else 3.5)
        values = {30: 3.1 if adam else 2.9, 60: final}
        folder = runs / cell.id
        folder.mkdir(parents=True)
        rows = [json.dumps({"step": step, "loss": 1.0, "val_loss": value}) + "\n" for step, value in values.items()]
        (folder / "history.jsonl").write_text("".join(rows))


def material_of(plan: Plan, folder: Path) -> Material:
    return Material(StudyResults(layout_of(plan), results_frame(plan, [])), folder / "runs", folder)


def test_the_file_and_the_section(plan: Plan, tmp_path: Path) -> None:
    write_histories(plan, tmp_path / "runs")
    material = material_of(plan, tmp_path)
    of = {(row["optimizer"], row["seed"]): row for row in material.rows(STATISTIC)}
    assert list(of) == [(key, seed) for key in ("adamw", "coupled_adam") for seed in ("1", "2", "3", "all")]
    first = of["adamw", "1"]
    assert (first["step"], first["tokens"], first["n_reached"]) == (60.0, 60 * 4 * 16, 1)
    adam, coupled = of["adamw", "all"], of["coupled_adam", "all"]
    assert (adam["n_reached"], adam["reason"]) == (2, "1 of 3 runs do not reach it")
    assert math.isnan(adam["tokens"])
    assert (coupled["step"], coupled["tokens"], coupled["loss"]) == (30.0, 1920.0, pytest.approx(3.1))
    expected = scipy.stats.ttest_1samp([3.2, 3.1, 3.0], 3.0, alternative="less").pvalue
    assert coupled["p_value"] == pytest.approx(expected)
    ((adam_line, coupled_line),) = tables_of(STATISTIC, material)
    assert adam_line[3:7] == ["2 of 3", "-", "-", "3.1000 (3464)"]
    assert coupled_line[3:7] == ["3 of 3", "1.92K", "-", "3.1000 (1000)"]


def test_without_a_target_there_is_nothing(tiny_plan: Plan, tmp_path: Path) -> None:
    material = material_of(tiny_plan, tmp_path)
    assert material.rows(STATISTIC) == []
    assert tables_of(STATISTIC, material) == []


def test_a_target_needs_a_validation_loss(tiny_study: Any) -> None:
    execution = tiny_study()["execution"] | {"eval_every": None}
    with pytest.raises(ValueError, match=r"statistics\.target_loss: 3\.0 .* give execution\.eval_every"):
        parse_study(tiny_study(statistics={"target_loss": 3}, execution=execution))
    parse_study(tiny_study(execution=execution))
