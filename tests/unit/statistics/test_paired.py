import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.weightstats import ttost_ind, ttost_paired

from coupled_adam_bench.statistics.paired import (
    N_DRAWN,
    bootstrap_interval,
    paired_test,
    sign_flip_p,
)
from coupled_adam_bench.statistics.student import NO_SPREAD, equivalence_p, t_test

FIRST = [3.05, 2.98, 3.11, 3.02, 2.99]
SECOND = [3.01, 2.99, 3.06, 2.97, 2.95]


def by_seed(values: list[float], first: int = 1) -> dict[int, float]:
    return dict(enumerate(values, first))


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("higher_is_better", [True, False])
def test_agrees_with_scipy(n, higher_is_better):
    first, second = FIRST[:n], SECOND[:n]
    expected = stats.ttest_rel(first, second, alternative="greater" if higher_is_better else "less")
    test = paired_test(by_seed(first), by_seed(second), higher_is_better)
    assert (test.n, test.reason) == (n, "")
    assert test.difference == pytest.approx(np.mean(first) - np.mean(second), rel=1e-9)
    assert (test.t, test.p_value) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-9)
    two_sided = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (test.low, test.high) == pytest.approx((two_sided.low, two_sided.high), rel=1e-9)
    permuted = stats.permutation_test(
        (first, second),
        lambda a, b: np.mean(a) - np.mean(b),
        permutation_type="samples",
        alternative="greater" if higher_is_better else "less",
    )
    assert test.p_permutation == pytest.approx(permuted.pvalue, rel=1e-12)
    assert test.p_permutation_min == 2.0**-n <= test.p_permutation


def test_the_pooled_interval_is_that_of_scipy():
    test = t_test(FIRST, SECOND[:4], higher_is_better=True)
    expected = stats.ttest_ind(FIRST, SECOND[:4]).confidence_interval(0.95)
    assert (test.low, test.high) == pytest.approx((expected.low, expected.high), rel=1e-9)


def test_flips_of_signs_by_hand():
    # Sums of +-1 +-2 +-4 are all different: 7 is the largest of 8, 5 the second, and -7 the last.
    assert sign_flip_p([1.0, 2.0, 4.0], 1e-12) == 1 / 8
    assert sign_flip_p([-1.0, 2.0, 4.0], 1e-12) == 2 / 8
    assert sign_flip_p([-1.0, -2.0, -4.0], 1e-12) == 1
    assert sign_flip_p([1.0, 1.0, -1.0], 1e-12) == 4 / 8  # ties count: 3 and three times 1
    assert (
        sign_flip_p([0.1, 0.2, -0.3], 1e-12) == 5 / 8
    )  # 0.6, 0.4, 0.2 and two sums of zero but for rounding
    assert sign_flip_p([0.0, 0.0], 1e-12) == 1


def test_many_seeds_are_flipped_at_random_and_the_same_each_time():
    values = np.random.default_rng(1).normal(0.4, 1, size=14).tolist()
    exact = np.mean(
        [
            sum(s * v for s, v in zip(signs, values, strict=True)) >= sum(values) - 1e-12
            for signs in np.ndindex(*[2] * 14)
            for signs in [[1 - 2 * s for s in signs]]
        ]
    )
    found = sign_flip_p(values, 1e-12)
    assert found == sign_flip_p(values, 1e-12)
    assert found == pytest.approx(exact, abs=4 * math.sqrt(exact / N_DRAWN))


def test_bootstrap_of_three_seeds_is_their_range():
    assert bootstrap_interval([0.5, -0.25, 1.0]) == (-0.25, 1.0)
    assert bootstrap_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)


@pytest.mark.parametrize("n", [5, 7, 9])
def test_bootstrap_agrees_with_scipy(n):
    values = np.random.default_rng(n).normal(size=n)
    drawn = stats.bootstrap(
        (values,), np.mean, n_resamples=40_000, method="percentile", rng=1
    ).confidence_interval
    found = bootstrap_interval(values.tolist())
    assert found == pytest.approx((drawn.low, drawn.high), abs=0.04)
    assert found == bootstrap_interval(values.tolist())
    assert bootstrap_interval((-values).tolist()) == pytest.approx((-found[1], -found[0]), abs=0.04)


def test_only_shared_seeds_make_pairs():
    test = paired_test(by_seed(FIRST), by_seed(SECOND, first=3), higher_is_better=True)
    assert test.n == 3
    assert test.difference == pytest.approx(np.mean(FIRST[2:]) - np.mean(SECOND[:3]))


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ({1: 1.0, 2: math.nan}, {1: 1.0, 2: 2.0}, "1 of 2 pairs of a seed have a missing value"),
        (
            {1: 1.0, 2: math.nan},
            {1: math.inf, 2: math.nan},
            "2 of 2 pairs of a seed have a missing value",
        ),
        ({1: 1.0}, {1: 2.0}, "1 seed(s) in common, pairs need 2"),
        ({1: 1.0, 2: 1.0}, {3: 2.0, 4: 2.0}, "0 seed(s) in common, pairs need 2"),
    ],
)
def test_no_test_without_pairs(first, second, reason):
    test = paired_test(first, second, True)
    assert test.reason == reason
    assert math.isnan(test.p_value)
    assert math.isnan(test.bootstrap_low)
    assert math.isnan(equivalence_p(test.difference, test.standard_error, test.n - 1, 0.1))


def test_without_variance():
    same = paired_test({1: 1.0, 2: 2.0}, {1: 1.0, 2: 2.0}, True)
    assert (same.p_value, same.p_permutation, same.reason) == (1, 1, "all differences are zero")
    shifted = paired_test({1: 1.5, 2: 2.5}, {1: 1.0, 2: 2.0}, True)
    assert (shifted.difference, shifted.standard_error, shifted.reason) == (0.5, 0, NO_SPREAD)
    assert (shifted.p_permutation, shifted.p_permutation_min) == (0.25, 0.25)
    for test in (same, shifted):
        untold = (test.t, test.low, test.high, test.bootstrap_low, test.bootstrap_high)
        assert all(map(math.isnan, untold))
    assert math.isnan(shifted.p_value)


def test_counts_that_differ_by_one_item_in_each_seed_are_no_certainty():
    """24 items, of which each seed of one optimizer has one more right: rounding is no spread."""
    for counts in ([10, 7], [10, 7, 8], [3, 14, 22, 9]):
        one = by_seed([count / 24 for count in counts])
        other = by_seed([(count - 1) / 24 for count in counts])
        test = paired_test(one, other, True)
        assert test.difference == pytest.approx(1 / 24)
        assert math.isnan(test.p_value)
        assert test.p_permutation == 2.0 ** -len(counts)
        assert test.reason == NO_SPREAD


@pytest.mark.parametrize("margin", [0.01, 0.05, 0.5])
def test_equivalence_agrees_with_statsmodels(margin):
    pooled = t_test(FIRST, SECOND[:4], True)
    expected, *_ = ttost_ind(np.array(FIRST), np.array(SECOND[:4]), -margin, margin)
    assert equivalence_p(
        pooled.difference, pooled.standard_error, pooled.df, margin
    ) == pytest.approx(expected)
    pairs = paired_test(by_seed(FIRST), by_seed(SECOND), True)
    expected, *_ = ttost_paired(np.array(FIRST), np.array(SECOND), -margin, margin)
    assert equivalence_p(
        pairs.difference, pairs.standard_error, pairs.n - 1, margin
    ) == pytest.approx(expected)


def test_equivalence_without_variance_or_margin():
    for difference in (0.0, 0.1, 0.2, 0.3):
        assert math.isnan(equivalence_p(difference, 0.0, 4, margin=0.2))
    assert math.isnan(equivalence_p(0.1, 0.1, 4, math.nan))
