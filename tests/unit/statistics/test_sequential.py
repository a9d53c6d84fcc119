from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from coupled_adam_bench.statistics.sequential import boundaries, nominal_levels, spent

FIVE = (0.2, 0.4, 0.6, 0.8, 1.0)


@pytest.mark.parametrize(
    ("spending", "published"),
    [
        # Lan and DeMets' spending functions, one-sided 2.5 %, as tables and gsDesign print them.
        ("obrien_fleming", (4.877, 3.357, 2.680, 2.290, 2.031)),
        ("pocock", (2.438, 2.427, 2.410, 2.397, 2.386)),
    ],
)
def test_boundaries_are_the_published_ones(spending, published):
    assert boundaries(FIVE, 0.025, spending) == pytest.approx(published, abs=6e-4)


def test_one_look_is_a_plain_test():
    for spending in ("obrien_fleming", "pocock"):
        assert boundaries([1.0], 0.05, spending) == pytest.approx([stats.norm.isf(0.05)], abs=1e-9)
        assert nominal_levels([3], 0.05, spending) == pytest.approx([0.05])


@pytest.mark.parametrize("spending", ["obrien_fleming", "pocock"])
def test_the_error_of_two_looks_is_that_of_the_bivariate_normal(spending):
    fractions, alpha = (0.375, 1.0), 0.05
    first, second = boundaries(fractions, alpha, spending)
    assert stats.norm.sf(first) == pytest.approx(spent(spending, fractions[0], alpha), rel=1e-8)
    correlation = np.sqrt(fractions[0])
    inside = stats.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]]).cdf([first, second])
    assert 1 - inside == pytest.approx(alpha, abs=1e-7)


@pytest.mark.parametrize("spending", ["obrien_fleming", "pocock"])
@pytest.mark.parametrize("looks", [(2, 3, 5, 8), (3, 100), tuple(range(2, 12))])
def test_simulated_paths_cross_as_often_as_alpha(spending, looks):
    rng = np.random.default_rng(1)
    increments = rng.normal(size=(100_000, len(looks))) * np.sqrt(np.diff([0, *looks]))
    z = increments.cumsum(axis=1) / np.sqrt(looks)
    limits = boundaries([look / looks[-1] for look in looks], 0.05, spending)
    assert (z > limits).any(axis=1).mean() == pytest.approx(0.05, abs=0.0025)


def test_spending_begins_small_ends_with_alpha_and_grows():
    for spending in ("obrien_fleming", "pocock"):
        values = [spent(spending, fraction, 0.05) for fraction in (1e-3, 0.1, 0.5, 0.9, 1.0)]
        assert values[-1] == pytest.approx(0.05)
        assert all(a < b for a, b in pairwise(values))


def test_a_look_with_hardly_any_information_spends_nothing_and_stops_nothing():
    first, last = boundaries([1e-4, 1.0], 0.05, "obrien_fleming")
    assert first > 30
    assert last == pytest.approx(stats.norm.isf(0.05), abs=1e-6)


@pytest.mark.parametrize("alpha", [1e-6, 0.025, 0.3, 0.499])
def test_every_level_is_a_probability_below_alpha(alpha):
    for spending in ("obrien_fleming", "pocock"):
        levels = nominal_levels(range(2, 30), alpha, spending)
        assert all(0 <= level <= alpha * (1 + 1e-9) for level in levels)


@pytest.mark.parametrize("spending", ["obrien_fleming", "pocock"])
def test_t_tests_at_the_nominal_levels_keep_the_error_about(spending):
    # The approximation for small samples: 3, 5 and 8 seeds of each optimizer. benchmarks/statistics.py draws more.
    rng = np.random.default_rng(2)
    first, second = rng.normal(size=(2, 40_000, 8))
    looks = (3, 5, 8)
    crossed = [
        stats.ttest_ind(first[:, :look], second[:, :look], axis=1, alternative="greater").pvalue < level
        for look, level in zip(looks, nominal_levels(looks, 0.05, spending), strict=True)
    ]
    assert np.any(crossed, axis=0).mean() == pytest.approx(0.05, abs=0.006)
