"""A line within each seed, against statsmodels and by hand."""

import math
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from coupled_adam_bench.statistics.lines import fit_line, upper_tail

GRID = [(x, z) for x in (1.0, 2.0, 3.0) for z in (5.0, 6.5)]


def drawn(seed_sd: float, n_seeds: int = 3, noise: float = 0.01) -> tuple[Any, Any, Any]:
    """A full grid of two covariates and seeds: values, covariates, seeds."""
    rng = np.random.default_rng(7)
    effects = seed_sd * rng.normal(size=n_seeds)
    rows = [
        (0.3 - 0.2 * x + 0.05 * z + effects[s] + noise * rng.normal(), (x, z), s)
        for s in range(n_seeds)
        for x, z in GRID
    ]
    return tuple(zip(*rows, strict=True))


def test_estimates_are_those_of_least_squares_and_their_errors_the_spread_of_the_seeds():
    values, covariates, seeds = drawn(seed_sd=0.1)
    fit = fit_line(values, covariates, seeds)
    x, y = np.array(covariates), np.array(values).reshape(3, -1)
    everything = sm.OLS(y.ravel(), sm.add_constant(x - x.mean(axis=0))).fit()
    assert fit.estimates == pytest.approx(everything.params.tolist(), rel=1e-9)
    of_seeds = np.array(
        [sm.OLS(own, sm.add_constant(x[:6] - x.mean(axis=0))).fit().params for own in y]
    )
    for index in range(3):
        expected = stats.ttest_1samp(of_seeds[:, index], 0, alternative="greater")
        error, df = fit.standard_error(index), fit.df
        assert fit.estimates[index] / error == pytest.approx(expected.statistic, rel=1e-9)
        assert upper_tail(fit.estimates[index], error, df) == pytest.approx(
            expected.pvalue, rel=1e-9
        )
    assert (fit.df, fit.n_seeds, fit.centre) == (2, 3, pytest.approx((2.0, 5.75)))


def test_the_centre_has_the_degrees_of_freedom_of_the_seeds_also_where_they_do_not_differ():
    values = np.array(drawn(seed_sd=0.0)[0]).reshape(3, -1)
    means = np.array([1.0, 1.001, 0.999])  # less than the noise explains
    values += means[:, None] - values.mean(axis=1, keepdims=True)
    fit = fit_line(values.ravel().tolist(), *drawn(seed_sd=0.0)[1:])
    assert (fit.estimates[0], fit.df) == (pytest.approx(1.0), 2)
    assert fit.standard_error(0) == pytest.approx(0.001 / math.sqrt(3), rel=1e-9)


def test_a_seed_without_a_line_is_left_out():
    values, covariates, seeds = drawn(seed_sd=0.1)
    kept = [index for index in range(18) if not (seeds[index] == 1 and covariates[index][0] > 1)]
    fit = fit_line(*([column[index] for index in kept] for column in (values, covariates, seeds)))
    assert (fit.n_seeds, fit.df, fit.reason) == (2, 1, "")
    alone = fit_line(values[:6], covariates[:6], seeds[:6])
    assert (alone.n_seeds, alone.reason) == (
        1,
        "1 seed(s) with places enough for a line, their spread needs 2",
    )


def test_what_cannot_be_fitted_says_why():
    apart = fit_line([1.0, 2.0], [(1.0,), (2.0,)], [1, 2])
    assert apart.reason == "0 seed(s) with places enough for a line, their spread needs 2"
    together = fit_line(
        [1.0, 2.0, 2.5, 4.0], [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, 4.0)], [1, 1, 2, 2]
    )
    assert together.reason == "tokens and parameters vary together only"
    assert all(map(math.isnan, together.estimates))


def test_values_without_any_spread_have_a_slope_of_zero_and_no_error():
    fit = fit_line([0.0] * 6, [(float(x),) for x in range(6)], [1, 1, 1, 2, 2, 2])
    assert list(fit.estimates) == [0.0, 0.0]
    assert fit.standard_error(1) == 0.0
    assert upper_tail(0.0, 0.0, 4.0) == 1.0
    assert math.isnan(upper_tail(1.0, 0.0, 4.0))
