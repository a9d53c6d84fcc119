import math

import pytest
from statsmodels.stats.power import TTestPower

from coupled_adam_bench.statistics.power import detectable_effect, power_of, seeds_needed

MODEL = TTestPower()


@pytest.mark.parametrize(("effect", "n"), [(0.5, 3), (1.2, 3), (30.0, 2), (0.2, 50), (8.0, 5)])
@pytest.mark.parametrize("alpha", [0.05, 0.05 / 32])
def test_power_is_that_of_statsmodels(effect: float, n: int, alpha: float) -> None:
    expected = MODEL.power(effect, n, alpha, alternative="two-sided")
    assert power_of(effect, n, alpha) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("n", [2, 3, 5, 20, 400])
def test_the_detectable_effect_is_found_in_four_of_five_studies(n: int) -> None:
    # statsmodels has NaN at some effects, and a number at their neighbours.
    effect = round(detectable_effect(n, 0.05), 6)
    power = MODEL.power(effect, n, 0.05, alternative="two-sided")
    assert power == pytest.approx(0.8, abs=5e-6)
    assert math.isnan(detectable_effect(1, 0.05))


@pytest.mark.parametrize("effect", [0.1, 0.9, 2.5, 30.0, 1e6])
def test_seeds_are_the_fewest_that_suffice(effect: float) -> None:
    seeds = int(seeds_needed(effect, 0.01))
    assert power_of(effect, seeds, 0.01) >= 0.8
    assert seeds == 2 or power_of(effect, seeds - 1, 0.01) < 0.8
    if effect < 1:
        exact = MODEL.solve_power(effect, alpha=0.01, power=0.8, alternative="two-sided")
        assert seeds == math.ceil(exact)


def test_no_number_of_seeds_is_none() -> None:
    assert all(math.isnan(seeds_needed(effect, 0.05)) for effect in (0.0, 1e-6, math.nan))
