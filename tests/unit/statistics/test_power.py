import math
from collections.abc import Callable
from typing import Any

import pytest
from statsmodels.stats.power import TTestIndPower, TTestPower

from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.results.tidy import typed_frame
from coupled_adam_bench.statistics.power import (
    DESIGNS,
    PAIRED,
    STATISTIC,
    UNPAIRED,
    detectable_effect,
    power_of,
    power_rows,
    seeds_needed,
)
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study

NAN = math.nan


def of_statsmodels(design: str) -> tuple[Any, str]:
    return (TTestIndPower(), "nobs1") if design == UNPAIRED else (TTestPower(), "nobs")


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize(("effect", "n"), [(0.5, 3), (1.2, 3), (3.0, 2), (0.2, 50), (8.0, 5)])
def test_power_is_that_of_statsmodels(design, effect, n):
    model, count = of_statsmodels(design)
    expected = model.power(effect, **{count: n}, alpha=0.05, alternative="larger")
    assert power_of(effect, n, design) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("effect", [0.1, 0.9, 2.5, 30.0, 1e4])
def test_seeds_are_the_fewest_that_suffice(design, effect):
    seeds = int(seeds_needed(effect, design))
    assert power_of(effect, seeds, design) >= 0.8
    assert seeds == 2 or power_of(effect, seeds - 1, design) < 0.8
    if effect < 2:
        model, count = of_statsmodels(design)
        exact = model.solve_power(
            effect, **{count: None}, alpha=0.05, power=0.8, alternative="larger"
        )
        assert seeds == math.ceil(exact)


def test_no_number_of_seeds_is_said_to_be_none():
    assert all(math.isnan(seeds_needed(effect, UNPAIRED)) for effect in (0.0, 1e-6, NAN))


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("n", [2, 3, 8])
def test_the_detectable_effect_has_the_power(design, n):
    effect = detectable_effect(n, design)
    model, count = of_statsmodels(design)
    assert model.power(effect, **{count: n}, alpha=0.05, alternative="larger") == pytest.approx(
        0.8, abs=1e-8
    )
    assert math.isnan(detectable_effect(1, design))


@pytest.fixture
def rows(tiny_study: Callable[..., dict[str, Any]], results_of: Any) -> Callable[..., Any]:
    def build(samples: dict[str, list[float]]) -> tuple[StudyResults, Any]:
        seeds = list(range(1, 1 + len(next(iter(samples.values())))))
        block = {
            "table": "mine",
            "models": ["nano"],
            "tokens": [{"steps": 60}],
            "optimizers": list(samples),
        }
        tables = {"mine": {"title": "Mine", "comparison": "single_runs", "columns": ["loss"]}}
        plan = make_plan(parse_study(tiny_study(tables=tables, grid=[block | {"seeds": seeds}])))
        study = results_of(plan, lambda cell, metric: samples[cell.optimizer.key][cell.seed - 1])
        return study, typed_frame(power_rows(study), STATISTIC.columns).set_index("design")

    return build


@pytest.mark.parametrize(
    ("adam", "coupled", "unpaired", "paired"),
    [
        ([3.0], [2.0], "one seed", "one seed"),
        ([3.0, NAN], [2.0, 2.5], "values missing", "1 of 2 seeds without both values"),
        ([3.0, 3.0], [2.0, 2.0], "no spread over seeds", "no spread over seeds"),
        ([3.0, 4.0], [3.0, 4.0], "more than 10,000 seeds", "no spread over seeds"),
        ([3.0, 4.0], [3.0 + 1e-9, 4.0], "more than 10,000 seeds", ""),
    ],
)
def test_what_has_no_number_of_seeds_says_why(rows, adam, coupled, unpaired, paired):
    _, found = rows({"adamw": adam, "coupled_adam": coupled})
    assert (found.loc[UNPAIRED]["reason"], found.loc[PAIRED]["reason"]) == (unpaired, paired)
    for row in found.to_dict("records"):
        assert math.isnan(row["seeds"]) == bool(row["reason"])
        # Seeds that do not vary cannot find every difference, however small.
        assert math.isnan(row["detectable"]) or row["detectable"] > 0
