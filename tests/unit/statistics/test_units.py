import math

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from coupled_adam_bench.statistics.units import average, mcnemar_p, of_documents, of_windows


def test_documents_are_a_paired_t_test() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 40))
    found = of_documents(first - second)
    expected = stats.ttest_rel(first, second)
    interval = expected.confidence_interval()
    assert (found.n, found.df, found.difference) == (40, 39, pytest.approx(np.mean(first - second)))
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.interval == pytest.approx((interval.low, interval.high), rel=1e-9)


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (1, 0), (9, 2), (2, 9), (30, 30), (0, 12), (700, 600)])
def test_mcnemar_is_a_binomial_test(better: int, worse: int) -> None:
    expected = stats.binomtest(better, better + worse, 0.5).pvalue if better + worse else 1.0
    assert mcnemar_p(better, worse) == pytest.approx(expected, rel=1e-9)


def test_windows_of_equal_length_are_a_t_test_over_blocks() -> None:
    values = np.random.default_rng(1).normal(0.1, 1, size=100)
    found = of_windows(values, np.full(100, 64))
    expected = stats.ttest_1samp(values.reshape(10, 10).mean(axis=1), 0)
    assert (found.n, found.df) == (100, 9)
    assert found.difference == pytest.approx(values.mean())
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)


def test_windows_are_weighted_by_their_targets() -> None:
    # Three blocks of three; the last window has a quarter of the targets. By hand with weights 4, and 1 for the last.
    values = np.array([1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 5.0, 4.0, 9.0])
    weights = np.array([4, 4, 4, 4, 4, 4, 4, 4, 1])
    mean = (4 * (1 + 2 + 3 + 0 + 1 + 2 + 5 + 4) + 9) / 33
    blocks = [4 * (6 - 3 * mean), 4 * (3 - 3 * mean), 4 * (9 - 2 * mean) + 9 - mean]
    found = of_windows(values, weights)
    assert found.difference == pytest.approx(mean, rel=1e-12)
    assert sum(blocks) == pytest.approx(0, abs=1e-12)
    assert found.standard_error == pytest.approx(math.sqrt(1.5 * sum(block**2 for block in blocks)) / 33, rel=1e-12)


def test_neighbours_that_are_alike_are_not_taken_for_more_text() -> None:
    """Each document fills eight windows: the plain t-test finds differences that are not there, the blocks do not."""
    rng = np.random.default_rng(2)
    wrong = plain = 0
    for _ in range(300):
        values = np.repeat(rng.normal(size=50), 8) + 0.1 * rng.normal(size=400)
        wrong += of_windows(values, np.full(400, 16)).p_value < 0.05
        plain += stats.ttest_1samp(values, 0).pvalue < 0.05
    assert wrong <= 33  # 15 expected, and some more, since blocks do not end where documents do
    assert plain > 120
    # The spread is that of a regression on a constant with the same number of neighbours (Newey and West 1987).
    hac = sm.OLS(values, np.ones(400)).fit(cov_type="HAC", cov_kwds={"maxlags": 20})
    assert of_windows(values, np.full(400, 16)).standard_error == pytest.approx(float(hac.bse[0]), rel=0.5)


def test_the_average_of_tasks_is_that_of_welch() -> None:
    """Two tasks whose differences are x and -y have half the difference of means of x and y: Welch's t-test."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(1, 2, size=30), rng.normal(0, 1, size=12)
    found = average([of_documents(x), of_documents(-y)])
    expected = stats.ttest_ind(x, y, equal_var=False)
    assert (found.n, found.df) == (42, pytest.approx(expected.df, rel=1e-9))
    assert found.difference == pytest.approx((x.mean() - y.mean()) / 2)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)


def test_what_does_not_vary() -> None:
    same = of_documents(np.zeros(5))
    assert (same.difference, same.standard_error, same.p_value, same.interval) == (0, 0, 1, (0, 0))
    assert of_documents(np.full(5, 0.25)).p_value == 0
    both = average([same, of_documents(np.zeros(9))])
    assert (both.p_value, both.df) == (1, 12)
    assert average([same, of_documents(np.array([0.0, 1.0, 1.0]))]).df == pytest.approx(2)


def test_too_few_units() -> None:
    assert math.isnan(of_documents(np.array([0.5])).p_value)
    few = of_windows(np.ones(8), np.full(8, 2))
    assert few.difference == 1
    assert math.isnan(few.p_value)
    assert all(map(math.isnan, few.interval))
