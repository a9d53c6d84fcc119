"""Small versions of ``benchmarks/error_rates.py``, ``trends.py`` and ``seeds.py``: how often tests are wrong."""

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestIndPower

from coupled_adam_bench.statistics.t_test import t_test

N = 400


def benchmark(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[3] / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    return benchmark("error_rates")


def near(share: float) -> object:
    """Four standard deviations of a binomial around a share."""
    return pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / N))


def test_rates_of_independent_runs(simulation: ModuleType) -> None:
    values = simulation.draw(N, 3, 0.0, 0.0, np.random.default_rng(0))
    assert values.shape == (N, 2, 3)
    found = simulation.rates(values, 0.0, margin=1.0)
    assert found.significant["t-test"] == near(0.05)
    assert found.significant["paired"] == near(0.05)
    assert found.significant["Welch"] <= 0.07
    assert found.significant["sign flips"] == 0  # 1/8 is the least with three seeds
    assert found.covered["pooled"] == near(0.95)
    assert found.covered["paired"] == near(0.95)
    assert found.covered["bootstrap"] == near(0.75)  # the range of three values around their median


def test_rates_of_runs_that_share_their_seeds(simulation: ModuleType) -> None:
    values = simulation.draw(N, 5, 0.9, 0.0, np.random.default_rng(1))
    assert np.corrcoef(values[:, 0].ravel(), values[:, 1].ravel())[0, 1] == pytest.approx(0.9, abs=0.02)
    found = simulation.rates(values, 0.0, margin=1.0)
    assert found.significant["paired"] == near(0.05)
    assert found.significant["sign flips"] == near(1 / 32)
    assert found.significant["t-test"] < 0.01  # cautious: the spread over seeds is not that of the difference
    assert found.covered["paired"] == near(0.95)


def test_equivalence_at_the_margin_is_found_rarely(simulation: ModuleType) -> None:
    values = simulation.draw(N, 5, 0.0, 2.0, np.random.default_rng(2))
    assert simulation.rates(values, 2.0, margin=2.0).equivalent <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / N)


@pytest.mark.parametrize(("difference", "n_seeds"), [(0.0, 3), (1.0, 3), (2.0, 5)])
def test_power_in_closed_form(simulation: ModuleType, difference: float, n_seeds: int) -> None:
    expected = TTestIndPower().power(difference, n_seeds, 0.05, alternative="larger")
    assert simulation.power(difference, n_seeds) == pytest.approx(expected, rel=1e-6)
    values = simulation.draw(N, n_seeds, 0.0, difference, np.random.default_rng(3))
    assert simulation.rates(values, difference, 1.0).significant["t-test"] == near(expected)


@pytest.mark.parametrize(("n_optimizers", "n_metrics"), [(2, 1), (2, 8), (4, 1), (8, 1)])
def test_corrections_promise_no_more_than_they_hold(simulation: ModuleType, n_optimizers: int, n_metrics: int) -> None:
    """Over the comparisons that the data chose, some p was below 5 % in 9.5 % of tables of two, in 17 % of eight."""
    n = 600
    values = simulation.draw(n * n_metrics, 3, 0.0, 0.0, np.random.default_rng(4), n_optimizers)
    found = simulation.corrected(values.reshape(n, n_metrics, n_optimizers, 3))
    for every, shown in found.values():
        assert every == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / n))
        assert 0.01 < shown <= every


def test_intervals_of_a_trend_hold_whatever_the_runs_of_a_seed_share() -> None:
    """A random effect of each seed held the centre in 91 % of studies, and a slope where seeds have theirs in 62 %."""
    trends = benchmark("trends")
    rng = np.random.default_rng(5)
    for noise in trends.NOISES:
        *covered, _ = trends.rates(noise, 3, trends.SLOPE, N, rng)
        *_, wrong = trends.rates(noise, 3, 0.0, N, rng)
        assert [*covered, wrong] == [near(0.95), near(0.95), near(0.95), near(0.05)], noise


OFFICIAL = np.array([[1, 0.75, 0.5], [0.75, 1, 0.75], [0.5, 0.75, 1]])
"""How much of the text three seeds of the official protocol share in a step."""


def test_equal_correlations_of_seeds_have_a_closed_form() -> None:
    seeds = benchmark("seeds")
    for n, r in ((3, 0.0), (3, 2 / 3), (5, 0.3)):
        # With one correlation the variance is s^2 = (1 - r) chi^2 / (n - 1) and independent of the mean, whose variance
        # is (1 + (n - 1) r) / n: t is Student's t times the root of (1 + (n - 1) r) / (1 - r).
        stretch = ((1 + (n - 1) * r) / (1 - r)) ** 0.5
        rate = 2 * stats.t.sf(stats.t.ppf(0.95, 2 * n - 2) / stretch, 2 * n - 2)
        found = seeds.consequence(np.full((n, n), r) + (1 - r) * np.eye(n))
        assert found.error_rate == pytest.approx(rate, abs=4 * (rate * (1 - rate) / seeds.N_DRAWS) ** 0.5)
        assert found.sd_factor == pytest.approx((1 - r) ** 0.5)


def test_the_rate_of_correlated_seeds_is_that_of_the_t_test_of_the_tables() -> None:
    root = np.linalg.cholesky(OFFICIAL)
    generator = np.random.default_rng(5)
    significant = 0
    for _ in range(2000):
        a, b = generator.standard_normal((2, 3)) @ root.T
        best, other = sorted((a.tolist(), b.tolist()), key=lambda values: -sum(values))
        significant += t_test(best, other, higher_is_better=True).significant
    rate = benchmark("seeds").consequence(OFFICIAL).error_rate
    assert significant / 2000 == pytest.approx(rate, abs=4 * (rate * (1 - rate) / 2000) ** 0.5)
