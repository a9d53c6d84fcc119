"""Speedups, ranks and changes of order of a study, against formulas of their own."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from research.plugins.speedup import Flips, Speedup
from scipy import stats
from sections import tables_of, texts_of

from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.compare import compare
from coupled_adam_bench.statistics.decisions import decide
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.plug_ins import declared_as
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study

STATISTIC, FLIPS = declared_as("speedup", Speedup()), declared_as("flips", Flips())
GRID = (100, 200, 400)
NOISE = {tokens: 0.01 * np.random.default_rng(tokens).normal(size=3) for tokens in (*GRID, 800)}


def law(tokens: float) -> float:
    return 2.5 + 4 * tokens**-0.3


@pytest.fixture
def study(tiny_study: Callable[..., dict[str, Any]], results_of: Any) -> StudyResults:
    """Adam as the reference, Coupled Adam that falls behind, and SGD that diverges in one seed at
    one place."""

    def loss(cell: Any, metric: Any) -> float:
        if metric.name == "isotropy":  # a second metric, which the correction counts
            return 0.5 + 0.01 * float(NOISE[cell.steps][cell.seed - 1]) * len(cell.optimizer.key)
        if metric.name != "loss" or (cell.optimizer.name, cell.steps, cell.seed) == ("sgd", 100, 2):
            return math.nan
        gain = (
            {100: 0.1, 200: 0.002, 400: -0.1, 800: 0.0}[cell.steps]
            if cell.optimizer.name == "coupled_adam"
            else 0
        )
        own = np.random.default_rng(len(cell.optimizer.key)).normal()
        worse = 0.3 * (cell.optimizer.name == "sgd")
        return (
            law(cell.steps)
            + worse
            - gain
            + float(NOISE[cell.steps][cell.seed - 1])
            + 0.001 * own * cell.seed
        )

    block = {"models": ["nano"], "seeds": [1, 2, 3]}
    optimizers = ["adamw", "coupled_adam", {"name": "sgd", "lr_factor": 100}]
    grid = [
        block
        | {
            "table": "table7",
            "tokens": [{"steps": steps} for steps in GRID],
            "optimizers": optimizers,
        },
        block
        | {
            "tokens": [{"steps": 800}],
            "optimizers": ["adamw"],
        },  # of no table: it extends the curve
    ]
    return results_of(make_plan(parse_study(tiny_study(grid=grid))), loss)


def test_rows_have_ranks_and_ratios_on_the_curve_of_all_cells_of_the_reference(
    study,
):
    found = Material(study).frame(STATISTIC).set_index(["n_tokens", "optimizer"])
    batch = 64
    for steps in GRID:
        rows = found.loc[steps * batch]
        known = rows["loss"].dropna()
        assert rows["rank"].dropna().to_dict() == dict(
            zip(known.index, stats.rankdata(known), strict=True)
        )
        assert rows.loc["adamw"]["reason"] == "the reference" and set(rows["reference"]) == {
            "adamw"
        }
    first, last = found.loc[100 * batch, "coupled_adam"], found.loc[400 * batch, "coupled_adam"]
    # A loss of 0.1 less than 4 x 100^-0.3 is reached at 138; 0.1 more than 4 x 400^-0.3 at 272.
    for row, steps, gain in ((first, 100, 0.1), (last, 400, -0.1)):
        expected = ((4 * steps**-0.3 - gain) / 4) ** (-1 / 0.3)
        assert row["tokens_reference"] / batch == pytest.approx(expected, rel=0.06)
        assert row["speedup"] == row["tokens_reference"] / (steps * batch)
        assert row["low"] < row["speedup"] < row["high"]
    lost = found.loc[100 * batch, "sgd_f100"]
    assert math.isnan(lost["rank"]) and lost["reason"] == "a loss is missing"
    assert math.isfinite(found.loc[400 * batch, "sgd_f100"]["speedup"])


def test_a_change_of_order_counts_where_both_differences_are_significant(
    study,
):
    """A comparison has one corrected p-value: that of tests.csv, which is over all metrics of the
    table."""
    decided = decide(study)
    found = Material(decided).frame(FLIPS).set_index(["n_tokens", "n_tokens_later"])
    assert set(found["optimizer"]) == {"coupled_adam"} and set(found["reference"]) == {"adamw"}
    tests = compare(study)
    for places, row in found.iterrows():
        assert row["difference"] < 0 < row["difference_later"]
        both = []
        for tokens in places:
            at = (tests["metric"] == "loss") & (tests["n_tokens"] == tokens)
            at &= tests[["optimizer", "reference"]].isin(["coupled_adam", "adamw"]).all(axis=1)
            both += tests[at]["p_paired_holm"].tolist()
        assert [row["p_paired_holm"], row["p_paired_holm_later"]] == both
        assert row["told_apart"] == (max(both) < 0.05)
    assert found["told_apart"].to_dict() == {(6400, 25600): True, (12800, 25600): False}


def test_the_sections_show_both(study):
    (table,) = tables_of(STATISTIC, Material(study))
    assert [line[2:4] for line in table[:2]] == [["Adam", "2"], ["Coupled Adam", "1"]]
    flip, rest = texts_of(FLIPS, Material(decide(study)))
    assert "Coupled Adam has the lower loss at 6.4K, and Adam at 25.6K tokens" in flip
    assert rest.startswith("2 changes of order between two numbers of tokens, 1 of them with both")


def test_one_number_of_tokens_has_no_section(tiny_plan, results_of):
    material = Material(results_of(tiny_plan, lambda *_: 1.0))
    assert tables_of(STATISTIC, material) == texts_of(FLIPS, material) == []


def test_the_file_and_the_section_name_the_strongest_adam(tiny_study, results_of):
    gains = {"adamw": 0.0, "adamw_b2-0.999": 0.1, "coupled_adam": 0.05}
    optimizers = ["adamw", {"name": "adamw", "beta2": 0.999}, "coupled_adam"]
    block = {
        "table": "table7",
        "models": ["nano"],
        "seeds": [1, 2, 3],
        "tokens": [{"steps": steps} for steps in GRID],
        "optimizers": optimizers,
    }
    study = results_of(
        make_plan(parse_study(tiny_study(grid=[block]))),
        lambda cell, _: (
            law(cell.steps)
            - gains[cell.optimizer.key]
            + float(NOISE[cell.steps][cell.seed - 1]) * (1 + len(cell.optimizer.key))
        ),
    )
    found = Material(study).frame(STATISTIC)
    assert set(found["reference"]) == {"adamw_b2-0.999"}
    # Coupled Adam, which is ahead of plain Adam, is behind the strongest one.
    speedups = found[found["optimizer"] == "coupled_adam"]["speedup"].dropna()
    assert len(speedups) == 2 and (speedups < 1).all()
    (lines,) = tables_of(STATISTIC, Material(study))
    assert {line[-2] for line in lines} == {"Adam, beta2 = 0.999"}


def test_an_adam_of_another_table_is_the_reference_if_it_is_stronger(tiny_study, results_of):
    """The first optimizer of the table is a weaker Adam, which two optimizers of it are better
    than."""
    gains = {"adamw": 0.0, "coupled_adam": 0.02, "adamw_f3": 0.1}
    block = {"models": ["nano"], "seeds": [1, 2, 3], "tokens": [{"steps": steps} for steps in GRID]}
    strong = {"name": "adamw", "lr_factor": 3}
    grid = [
        block | {"table": "table1", "optimizers": ["adamw", "coupled_adam"]},
        block | {"optimizers": [strong]},
    ]
    study = results_of(
        make_plan(parse_study(tiny_study(grid=grid))),
        lambda cell, _: law(cell.steps) - gains[cell.optimizer.key],
    )
    found = Material(study).frame(STATISTIC)
    assert set(found["reference"]) == {"adamw_f3"}
    assert (found["speedup"].dropna() < 1).all() and len(found["speedup"].dropna()) == 4
    assert tables_of(STATISTIC, Material(study))[0][0][-2] == "adamw_f3"
