import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from coupled_adam_bench.results.sample import summarize
from coupled_adam_bench.statistics.student import ALPHA, NO_SPREAD, mean_interval, t_test

numbers = st.floats(-1e3, 1e3).map(lambda value: round(value, 6))
samples = st.lists(numbers, min_size=2, max_size=6).filter(lambda values: len(set(values)) > 1)


@given(first=samples, second=samples, higher_is_better=st.booleans())
def test_agrees_with_scipy(first, second, higher_is_better):
    alternative = "greater" if higher_is_better else "less"
    student = stats.ttest_ind(first, second, alternative=alternative)
    welch = stats.ttest_ind(first, second, equal_var=False, alternative=alternative)
    test = t_test(first, second, higher_is_better)
    # Means that nearly cancel leave scipy's float64 with few digits; ours are exact up to the last
    # rounding.
    noise = 1e-9 + 1e-12 * 1e3 / max(np.std(first), np.std(second))
    assert test.t == pytest.approx(student.statistic, rel=1e-9, abs=noise)
    assert test.df == student.df == len(first) + len(second) - 2
    assert test.p_value == pytest.approx(student.pvalue, rel=1e-6, abs=noise)
    assert test.p_welch == pytest.approx(welch.pvalue, rel=1e-6, abs=noise)
    assert test.reason == ""
    assert (test.first.mean, test.first.sd) == pytest.approx(
        (np.mean(first), np.std(first, ddof=1)), rel=1e-9, abs=1e-9
    )


def test_by_hand():
    # Means 3 and 1, variances 1 and 1, so pooled variance 1, standard error sqrt(2/3), t = 2 /
    # sqrt(2/3) = sqrt(6).
    test = t_test([2, 3, 4], [0, 1, 2], higher_is_better=True)
    assert test.difference == 2
    assert test.df == 4
    assert test.t == pytest.approx(math.sqrt(6), rel=1e-15)
    # P(T > t) for 4 degrees of freedom: 1/2 - sin(a) (1 + cos(a)^2 / 2) / 2 with tan(a) = t / 2.
    angle = math.atan(math.sqrt(6) / 2)
    assert test.p_value == pytest.approx(
        0.5 - math.sin(angle) * (1 + math.cos(angle) ** 2 / 2) / 2, rel=1e-12
    )
    # Hedges: d = 2 times Gamma(2) / (sqrt(2) Gamma(1.5)), which is 0.798 for df = 4.
    assert test.hedges_g == pytest.approx(2 / (math.sqrt(2) * math.gamma(1.5)), rel=1e-12)
    assert test.p_value < ALPHA
    assert (test.first.n, test.first.mean, test.first.sd) == (3, 3, 1)


def test_direction_follows_the_metric():
    low, high = [1.0, 1.1, 1.2], [2.0, 2.1, 2.2]
    assert t_test(high, low, True).p_value == t_test(low, high, False).p_value < ALPHA
    better, worse = t_test(high, low, True), t_test(low, high, True)
    assert better.p_value + worse.p_value == pytest.approx(1, rel=1e-12)
    assert (better.t, better.difference, better.hedges_g) == (
        -worse.t,
        -worse.difference,
        -worse.hedges_g,
    )


def test_critical_value_of_the_paper():
    # S = 3: df = 4, and the paper's table says 2.132. With variances 1 the statistic is difference
    # / sqrt(2/3).
    def shifted(t: float) -> bool:
        shift = t * math.sqrt(2 / 3)
        return (
            t_test([shift - 1, shift, shift + 1], [-1, 0, 1], higher_is_better=True).p_value < ALPHA
        )

    assert ALPHA == 0.05
    assert special.stdtrit(4, 0.95) == pytest.approx(2.132, abs=5e-4)
    assert not shifted(2.131)
    assert shifted(2.133)


def test_constant_samples():
    equal = t_test([0.1, 0.1, 0.1], [0.1, 0.1, 0.1], higher_is_better=True)
    assert math.isnan(equal.t)
    assert (equal.p_value, equal.p_welch) == (1, 1)
    assert equal.reason == "all values are equal"
    for higher in (True, False):
        apart = t_test([0.3, 0.3, 0.3], [0.1, 0.1, 0.1], higher)
        assert (apart.reason, apart.df) == (NO_SPREAD, 4)
        assert apart.difference == pytest.approx(0.2)
        untold = (apart.t, apart.p_value, apart.p_welch, apart.hedges_g, apart.low, apart.high)
        assert all(map(math.isnan, untold))
    one = t_test(
        [0.3, 0.3, 0.3], [0.1, 0.1, 0.4], higher_is_better=True
    )  # one constant sample is no special case
    # Means 0.3 and 0.2, variances 0 and 0.03: pooled 0.015, standard error sqrt(0.015 * 2 / 3) =
    # 0.1, t = 1.
    assert one.p_value == pytest.approx(stats.t.sf(1, 4), rel=1e-9)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ([1.0], [1.0, 2.0], "a: 1 value(s), the test needs 2"),
        ([1.0, 2.0], [], "b: 0 value(s), the test needs 2"),
        ([1.0, math.nan, 3.0], [1.0, 2.0, 3.0], "a: 1 of 3 values missing"),
        (
            [math.nan] * 3,
            [1.0, math.inf, 3.0],
            "a: 3 of 3 values missing; b: 1 of 3 values missing",
        ),
    ],
)
def test_no_test_without_all_values(first, second, reason):
    test = t_test(first, second, True, names=("a", "b"))
    assert all(
        math.isnan(value) for value in (test.t, test.df, test.p_value, test.hedges_g, test.p_welch)
    )
    assert test.reason == reason


def test_equal_values_have_a_mean_without_an_interval():
    assert all(map(math.isnan, mean_interval(summarize([0.25, 0.25, 0.25]))))
    expected = stats.ttest_1samp([0.25, 0.5, 0.25], 0).confidence_interval()
    assert mean_interval(summarize([0.25, 0.5, 0.25])) == pytest.approx(tuple(expected))


def test_summary():
    assert summarize([2.0]).mean == 2
    assert math.isnan(summarize([2.0]).sd)
    assert summarize([1.0, math.nan]).n == 1
    assert math.isnan(summarize([1.0, math.nan]).mean)
    assert summarize([]).n == 0
    # Exact arithmetic: no cancellation far from the origin.
    assert summarize([1e9 + 1, 1e9 + 2, 1e9 + 3]).sd == 1
