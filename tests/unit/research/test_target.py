"""Tokens to a target loss and the test against it, by hand and against scipy."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from research.plugins.target import below_target, first_accepted, first_reached
from sections import tables_of

from coupled_adam_bench.results.collect import results_frame
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import Material, Statistic
from coupled_adam_bench.statistics.plug_ins import own_statistics
from coupled_adam_bench.statistics.student import NO_SPREAD
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.settings import parse_study

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
    assert first_reached(HISTORY[:3], 3.5, 60) == (
        40.0,
        nan,
        "no validation loss at the last step, 60",
    )
    blown = first_reached([{"step": 60, "loss": math.nan, "val_loss": math.nan}], 3.5, 60)
    assert blown == (nan, nan, "no validation loss; no validation loss at the last step, 60")


def test_the_test_against_scipy():
    losses = [3.27, 3.281, 3.276, 3.2755, 3.279]
    found = below_target(losses, 3.28)
    expected = scipy.stats.ttest_1samp(losses, 3.28, alternative="less")
    assert (found["t"], found["p_value"]) == pytest.approx(
        (expected.statistic, expected.pvalue), rel=1e-9
    )
    assert (found["df"], found["reason"]) == (4.0, "")
    above = below_target([loss + 0.1 for loss in losses], 3.28)
    assert above["p_value"] > 0.99


@pytest.mark.parametrize(
    ("losses", "p", "reason"),
    [
        ([3.0], math.nan, "1 run, the test needs 2"),
        ([3.0, math.nan, 3.1], math.nan, "1 of 3 runs have no final validation loss"),
        ([3.0, 3.0], math.nan, NO_SPREAD),
        ([3.5, 3.5], 1.0, ""),
        ([4.0, 4.0], math.nan, NO_SPREAD),
    ],
)
def test_the_edges_of_the_test(losses, p, reason):
    found = below_target(losses, 3.5)
    assert (found["p_value"], found["reason"]) == (pytest.approx(p, nan_ok=True), reason)


SD = 0.0013
"""What modded-nanogpt's optimizer track takes as known."""


@pytest.mark.parametrize("losses", [[3.2758], [3.2779, 3.2785, 3.2771, 3.2776], [3.2815, 3.2799]])
def test_with_a_known_standard_deviation_against_scipy(losses):
    found = below_target(losses, 3.28, SD)
    z = (np.mean(losses) - 3.28) / SD * math.sqrt(len(losses))
    assert (found["t"], found["p_value"]) == pytest.approx((z, scipy.stats.norm.cdf(z)), rel=1e-9)
    assert (found["df"], found["reason"]) == (math.inf, "")


@pytest.mark.parametrize(
    ("losses", "published"),
    # Mean and number of runs of results 1, 2, 3, 4, 6 and 12 of the track, and whether its rule
    # accepts them.
    [
        ((3.2777, 1), False),
        ((3.2790, 1), False),
        ((3.2767, 1), False),
        ((3.2741, 5), True),
        ((3.2788, 20), True),
        ((3.2790, 20), True),
    ],
)
def test_it_accepts_what_the_track_accepts(losses, published):
    mean, n = losses
    history = [{"step": 25, "val_loss": 3.3}, {"step": 50, "val_loss": mean}]
    assert first_accepted([history] * n, 3.28, SD) == pytest.approx(
        50.0 if published else math.nan, nan_ok=True
    )
    assert published == ((3.28 - mean) * math.sqrt(n) >= 0.004)  # as the track writes it


def test_all_runs_are_accepted_at_one_step():
    runs = [
        [{"step": s, "val_loss": v} for s, v in zip((25, 50, 75), losses, strict=True)]
        for losses in (
            (3.2700, 3.2770, 3.2760),
            (3.2850, 3.2773, 3.2740),
        )
    ]
    # The means are 3.2775, 3.27715 and 3.275, and two runs need 3.28 - 0.00402 / sqrt(2) = 3.27716.
    assert first_accepted(runs, 3.28, SD) == 50
    assert first_accepted([runs[0], runs[1][2:]], 3.28, SD) == 75  # where only both were measured
    assert math.isnan(first_accepted([runs[0], []], 3.28, SD))


@pytest.mark.parametrize(
    ("n_steps", "correlation", "low", "high"),
    [(1, 0, 0.0009, 0.0011), (13, 0, 0.012, 0.014), (13, 0.95, 0.004, 0.006)],
)
def test_how_often_runs_at_the_target_are_accepted(n_steps, correlation, low, high):
    """The level at one step, and of the first of 13, which the rule allows; neighbouring steps of a
    run are alike."""
    n_runs, n_studies = 4, 2_000_000 // n_steps
    largest = 3.28 + scipy.stats.norm.ppf(0.001) * SD / math.sqrt(n_runs)
    for loss, accepted in ((largest - 1e-7, True), (largest + 1e-7, False)):
        history = [{"step": 25, "val_loss": loss}]
        assert math.isfinite(first_accepted([history] * n_runs, 3.28, SD)) == accepted
    covariance = correlation ** np.abs(np.subtract.outer(np.arange(n_steps), np.arange(n_steps)))
    errors = np.random.default_rng(1).multivariate_normal(np.zeros(n_steps), covariance, n_studies)
    means = 3.28 + SD / math.sqrt(n_runs) * errors
    assert low < (means < largest).any(axis=1).mean() < high


def targets(**arguments: Any) -> dict[str, Any]:
    """Return the section of a study that names the plug-in."""
    entry = {"name": "target", "path": "research.plugins.target.Target", "arguments": arguments}
    return {"files": [entry]}


def statistic_of(material: Material) -> Statistic:
    (statistic,) = own_statistics(material.plan)
    return statistic


@pytest.fixture
def plan(tiny_study: Any) -> Plan:
    (model,) = tiny_study()["models"]
    models = [model | {"label": "<script> & 100 % _ü_"}]
    return make_plan(parse_study(tiny_study(models=models, statistics=targets(loss=3.0))))


def write_histories(plan: Plan, runs: Path) -> None:
    """Adam reaches 3 at step 60 with seeds 1 and 2, and not with 3; Coupled Adam at step 30, each
    seed 0.1 lower."""
    for cell in plan.cells.values():
        adam = cell.optimizer.name == "adamw"
        final = 3.3 - 0.1 * cell.seed if not adam else (2.9 if cell.seed < 3 else 3.5)
        values = {30: 3.1 if adam else 2.9 + 0.001 * cell.seed, 60: final}
        folder = runs / cell.id
        folder.mkdir(parents=True)
        rows = [
            json.dumps({"step": step, "loss": 1.0, "val_loss": value}) + "\n"
            for step, value in values.items()
        ]
        (folder / "history.jsonl").write_text("".join(rows))


def material_of(plan: Plan, folder: Path) -> Material:
    return Material(StudyResults(layout_of(plan), results_frame(plan, [])), folder / "runs", folder)


def test_the_file_and_the_section(plan, tmp_path):
    write_histories(plan, tmp_path / "runs")
    material = material_of(plan, tmp_path)
    statistic = statistic_of(material)
    assert statistic.file == "target.csv"
    of = {(row["optimizer"], row["seed"]): row for row in material.rows(statistic)}
    assert list(of) == [
        (key, seed) for key in ("adamw", "coupled_adam") for seed in ("1", "2", "3", "all")
    ]
    first = of["adamw", "1"]
    assert (first["step"], first["tokens"], first["n_reached"]) == (60.0, 60 * 4 * 16, 1)
    adam, coupled = of["adamw", "all"], of["coupled_adam", "all"]
    assert (adam["n_reached"], adam["reason"]) == (2, "1 of 3 runs do not reach it")
    assert math.isnan(adam["tokens"])
    assert (coupled["step"], coupled["tokens"], coupled["loss"]) == (
        30.0,
        1920.0,
        pytest.approx(3.1),
    )
    expected = scipy.stats.ttest_1samp([3.2, 3.1, 3.0], 3.0, alternative="less").pvalue
    assert coupled["p_value"] == pytest.approx(expected)
    ((adam_line, coupled_line),) = tables_of(statistic, material)
    assert adam_line[3:8] == ["2 of 3", "-", "-", "-", "3.1000 (3464)"]
    assert coupled_line[3:8] == ["3 of 3", "1.92K", "-", "30", "3.1000 (1000)"]


def test_a_known_standard_deviation_in_the_file(tiny_study, tmp_path):
    plan = make_plan(parse_study(tiny_study(statistics=targets(loss=3.0, sd=0.01))))
    write_histories(plan, tmp_path / "runs")
    material = material_of(plan, tmp_path)
    rows = material.rows(statistic_of(material))
    accepted = {(row["optimizer"], row["seed"]): row["accepted_step"] for row in rows}
    assert accepted["coupled_adam", "all"] == 30
    assert math.isnan(accepted["coupled_adam", "1"])  # it is that of all runs
    assert math.isnan(accepted["adamw", "all"])


def test_without_a_target_there_is_nothing(tiny_plan):
    assert own_statistics(tiny_plan) == []


def test_a_target_needs_a_validation_loss(tiny_study):
    execution = tiny_study()["execution"] | {"eval_every": None}
    settings = tiny_study(statistics=targets(loss=3), execution=execution)
    with pytest.raises(
        ValueError,
        match=r"statistics\.files\.0: .*Target: the target 3 .* give execution\.eval_every",
    ):
        own_statistics(make_plan(parse_study(settings)))
    with pytest.raises(ValueError, match=r"arguments: missing a required argument: 'loss'"):
        own_statistics(make_plan(parse_study(tiny_study(statistics=targets(sd=0.01)))))
    for wrong in (0, -1, "low", True):
        plan = make_plan(parse_study(tiny_study(statistics=targets(loss=wrong))))
        with pytest.raises(ValueError, match=r"loss: must be a number above 0"):
            own_statistics(plan)
