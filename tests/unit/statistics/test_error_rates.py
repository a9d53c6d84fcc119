"""A small version of ``benchmarks/error_rates.py``: how often the tests are wrong, with fixed random numbers."""

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from statsmodels.stats.power import TTestIndPower

N = 400


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "error_rates.py"
    spec = importlib.util.spec_from_file_location("error_rates", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
