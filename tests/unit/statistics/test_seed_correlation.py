"""What correlated seeds do, against closed forms and against the t-test itself."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from coupled_adam_bench.statistics.seeds import N_DRAWS, consequence, sd_factor
from coupled_adam_bench.statistics.t_test import t_test


def equal(n: int, r: float) -> NDArray[np.float64]:
    return np.full((n, n), r) + (1 - r) * np.eye(n)


OFFICIAL = np.array([[1, 0.75, 0.5], [0.75, 1, 0.75], [0.5, 0.75, 1]])


def test_independent_seeds_have_the_nominal_rate() -> None:
    for n in (2, 3, 10):
        found = consequence(np.eye(n))
        assert found.sd_factor == 1.0
        assert found.error_rate == pytest.approx(0.1, abs=4 * (0.09 / N_DRAWS) ** 0.5)


@pytest.mark.parametrize(("n", "r"), [(3, 0.5), (3, 2 / 3), (5, 0.3)])
def test_equal_correlations_have_a_closed_form(n: int, r: float) -> None:
    # With one correlation the variance is s^2 = (1 - r) chi^2 / (n - 1) and independent of the mean, whose variance is
    # (1 + (n - 1) r) / n: t is Student's t times the root of (1 + (n - 1) r) / (1 - r).
    stretch = ((1 + (n - 1) * r) / (1 - r)) ** 0.5
    rate = 2 * stats.t.sf(stats.t.ppf(0.95, 2 * n - 2) / stretch, 2 * n - 2)
    found = consequence(equal(n, r))
    assert found.error_rate == pytest.approx(rate, abs=4 * (rate * (1 - rate) / N_DRAWS) ** 0.5)
    assert found.sd_factor == pytest.approx((1 - r) ** 0.5)


def test_the_rate_is_that_of_the_t_test_of_the_tables() -> None:
    root = np.linalg.cholesky(OFFICIAL)
    generator = np.random.default_rng(5)
    significant = 0
    for _ in range(2000):
        a, b = generator.standard_normal((2, 3)) @ root.T
        best, other = sorted((a.tolist(), b.tolist()), key=lambda values: -sum(values))
        significant += t_test(best, other, higher_is_better=True).significant
    rate = consequence(OFFICIAL).error_rate
    assert significant / 2000 == pytest.approx(rate, abs=4 * (rate * (1 - rate) / 2000) ** 0.5)


def test_the_standard_deviation_is_understated_by_the_factor() -> None:
    root = np.linalg.cholesky(OFFICIAL)
    drawn = np.random.default_rng(3).standard_normal((200_000, 3)) @ root.T
    assert drawn.var(axis=1, ddof=1).mean() ** 0.5 == pytest.approx(sd_factor(OFFICIAL), rel=0.01)
    assert sd_factor(OFFICIAL) == pytest.approx((1 / 3) ** 0.5)


def test_what_moves_both_optimizers_alike_cancels() -> None:
    apart, half, together = (consequence(OFFICIAL, common=common).error_rate for common in (0.0, 0.5, 0.95))
    assert apart > half > together
    assert consequence(OFFICIAL, of_data=0.0).error_rate == consequence(np.eye(3)).error_rate
    assert 0.1 < consequence(OFFICIAL, of_data=0.5).error_rate < apart


def test_identical_seeds_have_no_spread() -> None:
    found = consequence(np.ones((3, 3)))
    assert found.sd_factor == 0.0
    assert found.error_rate > 0.9  # but for rounding, every difference is significant
