import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from embedding_geometry.correlation import pearson, spearman

numbers = st.floats(-1e3, 1e3).map(lambda x: round(x, 3))
pairs = st.lists(st.tuples(numbers, numbers), min_size=3, max_size=40).filter(
    lambda rows: all(len(set(column)) > 1 for column in zip(*rows, strict=True))
)


def test_pearson_by_hand():
    # x - mean = (-1, 0, 1), y - mean = (-1, -1, 2): r = 3 / sqrt(2 * 6)
    assert pearson([1, 2, 3], [1, 1, 4]) == pytest.approx(3 / math.sqrt(12), rel=1e-15)


def test_spearman_by_hand_with_ties():
    # ranks of x: 1, 2.5, 2.5, 4; of y: 1, 2, 3, 4: r = 4.5 / sqrt(4.5 * 5)
    assert spearman([0, 7, 7, 100], [-1, 0, 1, 9]) == pytest.approx(
        4.5 / math.sqrt(22.5), rel=1e-15
    )


@given(pairs)
def test_agrees_with_scipy(rows):
    x, y = zip(*rows, strict=True)
    assert pearson(x, y) == pytest.approx(scipy.stats.pearsonr(x, y).statistic, abs=1e-9)
    assert spearman(x, y) == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-9)


@given(pairs)
def test_symmetric_bounded_and_blind_to_scale(rows):
    x, y = (np.array(column) for column in zip(*rows, strict=True))
    r = pearson(x, y)
    assert -1 <= r <= 1
    assert pearson(y, x) == pytest.approx(r, abs=1e-12)
    assert pearson(3e150 * x, -2e-150 * y) == pytest.approx(-r, abs=1e-9)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([], []),
        ([1.0], [2.0]),
        ([0.1] * 7, [1, 2, 3, 4, 5, 6, 7]),
        ([1, 2, 3], [5, 5, 5]),
        ([1, 2, math.nan], [1, 2, 3]),
        ([1, 2, 3], [1, 2, math.inf]),
    ],
)
def test_undefined_is_nan(x, y):
    assert math.isnan(pearson(x, y))
    assert math.isnan(spearman(x, y))


def test_different_lengths_are_an_error():
    with pytest.raises(ValueError, match="equal length"):
        pearson([1, 2], [1, 2, 3])
