import math

import numpy as np
import pytest
from scipy.stats import linregress

from coupled_adam_bench.tools.theory.gradients import against_probability
from coupled_adam_bench.training.moment import fit_line


def test_the_line_is_scipy_s():
    rng = np.random.default_rng(0)
    x = rng.exponential(size=50)
    y = 3 * x - 0.2 + rng.normal(size=50)
    line, expected = fit_line(x, y), linregress(x, y)
    assert line.slope == pytest.approx(expected.slope, rel=1e-12)
    assert line.intercept == pytest.approx(expected.intercept, rel=1e-12)
    assert line.r_squared == pytest.approx(expected.rvalue**2, rel=1e-12)
    assert 0.1 < line.r_squared < 0.99


def test_what_has_no_line_is_nan():
    same = fit_line(np.ones(3), np.arange(3.0))
    assert all(math.isnan(value) for value in vars(same).values())
    flat = fit_line(np.arange(3.0), np.ones(3))
    assert (flat.slope, flat.intercept) == (0, 1)
    assert math.isnan(flat.r_squared)


def test_tokens_that_do_not_occur_are_left_out():
    counts = np.array([60, 0, 30, 10, 0])
    found = against_probability(np.array([0.7, 99.0, 0.4, 0.2, -5.0]), counts)
    assert found["probability"] == [0.6, 0.3, 0.1]
    assert found["mean_square"] == [0.7, 0.4, 0.2]
    assert found["slope"] == pytest.approx(1)
    assert found["intercept"] == pytest.approx(0.1)
    assert found["r_squared"] == pytest.approx(1)
