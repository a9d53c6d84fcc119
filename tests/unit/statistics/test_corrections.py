import math
import random

import pytest
from statsmodels.stats.multitest import multipletests

from coupled_adam_bench.statistics.student import benjamini_hochberg, holm


def test_by_hand():
    # Sorted: 0.005 * 4, 0.01 * 3, 0.03 * 2, 0.04 * 1 = 0.04 < 0.06, so the larger one stands.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_nan_is_no_test():
    adjusted = holm([0.02, math.nan, 0.6])
    assert (adjusted[0], adjusted[2]) == (0.04, 0.6)
    assert math.isnan(adjusted[1])


def test_both_are_the_bits_of_statsmodels():
    draw = random.Random(0)
    for n_tests in (1, 2, 3, 8):
        p_values = [draw.choice((0.0, 0.01, draw.random() ** 4, 1.0)) for _ in range(n_tests)]
        assert holm(p_values) == multipletests(p_values, method="holm")[1].tolist()
        assert benjamini_hochberg(p_values) == multipletests(p_values, method="fdr_bh")[1].tolist()


def test_benjamini_hochberg_by_hand():
    # From the largest: 0.04 * 4/4, min(0.04, 0.03 * 4/3) = 0.04, min(0.04, 0.01 * 4/2) = 0.02,
    # min(0.02, 0.005 * 4).
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert benjamini_hochberg([]) == []
    assert math.isnan(benjamini_hochberg([math.nan])[0])
