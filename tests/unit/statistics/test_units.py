import math

import numpy as np
import pytest
from scipy import stats

from coupled_adam_bench.statistics.units import average, mcnemar_p, of_documents, of_held_out


def test_documents_are_a_paired_t_test():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 40))
    found = of_documents(first - second)
    expected = stats.ttest_rel(first, second)
    interval = expected.confidence_interval()
    assert (found.n, found.df, found.difference) == (40, 39, pytest.approx(np.mean(first - second)))
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.interval == pytest.approx((interval.low, interval.high), rel=1e-9)


@pytest.mark.parametrize(
    ("better", "worse"), [(0, 0), (1, 0), (9, 2), (2, 9), (30, 30), (0, 12), (700, 600)]
)
def test_mcnemar_is_a_binomial_test(better, worse):
    expected = stats.binomtest(better, better + worse, 0.5).pvalue if better + worse else 1.0
    assert mcnemar_p(better, worse) == pytest.approx(expected, rel=1e-9)


def test_held_out_documents_of_equal_length_are_a_paired_t_test():
    rng = np.random.default_rng(1)
    first, second = rng.normal(0.1, 1, size=(2, 30))
    found = of_held_out(first - second, np.full(30, 640.0))
    expected = stats.ttest_rel(first, second)
    assert (found.n, found.df) == (30, pytest.approx(29))
    assert found.difference == pytest.approx(np.mean(first - second))
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)


LENGTHS = np.random.default_rng(2).lognormal(5, 1.5, size=17).astype(int) + 1


def test_held_out_documents_against_the_jackknife_and_the_quadratic_form():
    """The error leaves out documents in plain words; the degrees of freedom come from matrices of
    all documents."""
    values = np.random.default_rng(3).normal(size=17)
    found = of_held_out(values, LENGTHS.astype(float))
    assert found.difference == pytest.approx(np.average(values, weights=LENGTHS), rel=1e-12)
    kept = [np.delete(np.arange(17), left_out) for left_out in range(17)]
    without = [np.average(values[rest], weights=LENGTHS[rest]) for rest in kept]
    assert found.standard_error**2 == pytest.approx(
        16 / 17 * sum((np.array(without) - found.difference) ** 2)
    )
    # The variance is a quadratic form v' M v; of normal values with covariance C, its mean is tr
    # MC, its variance 2 tr MCMC. Of independent targets, C is one over the lengths.
    share = LENGTHS / LENGTHS.sum()
    residuals = np.eye(17) - np.outer(np.ones(17), share)
    form = residuals.T @ np.diag((share / (1 - share)) ** 2) @ residuals @ np.diag(1 / LENGTHS)
    assert found.standard_error**2 == pytest.approx(
        16 / 17 * values @ form @ np.diag(LENGTHS) @ values
    )
    assert found.df == pytest.approx(np.trace(form) ** 2 / np.trace(form @ form), rel=1e-9)
    assert found.df < 9


def test_the_average_of_tasks_is_that_of_welch():
    """Two tasks whose differences are x and -y have half the difference of means of x and y:
    Welch's t-test."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(1, 2, size=30), rng.normal(0, 1, size=12)
    found = average([of_documents(x), of_documents(-y)])
    expected = stats.ttest_ind(x, y, equal_var=False)
    assert (found.n, found.df) == (42, pytest.approx(expected.df, rel=1e-9))
    assert found.difference == pytest.approx((x.mean() - y.mean()) / 2)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)


def test_what_does_not_vary():
    for value in (0.25, 1 / 3):
        for apart in (
            of_held_out(np.full(5, value), np.arange(1.0, 6.0)),
            of_documents(np.full(5, value)),
        ):
            assert (apart.difference, apart.standard_error) == (pytest.approx(value), 0)
            assert all(map(math.isnan, (apart.p_value, *apart.interval)))
    same = of_documents(np.zeros(5))
    assert (same.difference, same.standard_error, same.p_value) == (0, 0, 1)
    assert all(map(math.isnan, same.interval))
    both = average([same, of_documents(np.zeros(9))])
    assert (both.p_value, both.df) == (1, 12)
    assert average([same, of_documents(np.array([0.0, 1.0, 1.0]))]).df == pytest.approx(2)


def test_too_few_units():
    assert math.isnan(of_documents(np.array([0.5])).p_value)
    one = of_held_out(np.ones(1), np.full(1, 2.0))
    assert one.difference == 1
    assert math.isnan(one.p_value)
    assert all(map(math.isnan, one.interval))
    assert of_held_out(np.array([1.0, 2.0]), np.array([5.0, 5.0])).df == pytest.approx(1)
