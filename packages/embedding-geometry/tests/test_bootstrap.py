import math

import numpy as np
import pytest
import scipy.stats

from embedding_geometry import correlation
from embedding_geometry.correlation import (
    interval,
    pearson_resamples,
    resamples,
    spearman_resamples,
)


def drawn(seed: int = 0, n_pairs: int = 25) -> tuple[np.ndarray, np.ndarray]:
    """Ratings with ties, and similarities near 1 that differ little."""
    rng = np.random.default_rng(seed)
    ratings = rng.integers(0, 6, n_pairs).astype(float)
    return 1 - 1e-6 * (rng.normal(size=n_pairs) - 0.3 * ratings), ratings


def test_each_resample_against_scipy():
    x, y = drawn()
    counts = resamples(len(x), seed=3)[:40]
    for kind, of_scipy in (
        (pearson_resamples, scipy.stats.pearsonr),
        (spearman_resamples, scipy.stats.spearmanr),
    ):
        found = kind(x, y, counts)
        for row, value in zip(counts.astype(int), found, strict=True):
            sample_x, sample_y = (
                np.repeat(x, row),
                np.repeat(y, row),
            )  # as if they were drawn one by one
            assert value == pytest.approx(of_scipy(sample_x, sample_y).statistic, abs=1e-8)


def test_resamples_are_drawn_with_replacement_and_fixed():
    counts = resamples(12, seed=1)
    assert counts.shape == (correlation.RESAMPLES, 12)
    assert (counts.sum(axis=1) == 12).all()
    np.testing.assert_array_equal(counts, resamples(12, seed=1))
    assert not np.array_equal(counts, resamples(12, seed=2))
    assert counts.mean() == 1.0
    assert counts.var() == pytest.approx(1 - 1 / 12, rel=0.05)  # binomial


def test_the_interval_is_that_of_scipy():
    x, y = drawn(1, 60)
    low, high = interval(pearson_resamples(x, y, resamples(60, seed=0)))
    reference = scipy.stats.bootstrap(
        (x, y),
        lambda a, b: scipy.stats.pearsonr(a, b).statistic,
        paired=True,
        vectorized=False,
        n_resamples=2000,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert (low, high) == pytest.approx((reference.low, reference.high), abs=0.03)
    assert low < scipy.stats.pearsonr(x, y).statistic < high


def test_blind_to_scale_and_order():
    x, y = drawn(2)
    counts = resamples(len(x), seed=4)
    for kind in (pearson_resamples, spearman_resamples):
        first = kind(x, y, counts)
        np.testing.assert_allclose(kind(1e200 * x, -1e-200 * y, counts), -first, atol=1e-7)
        np.testing.assert_allclose(kind(x[::-1], y[::-1], counts[:, ::-1]), first, atol=1e-9)
        assert (np.abs(first) <= 1).all()


@pytest.mark.parametrize("kind", [pearson_resamples, spearman_resamples])
def test_where_they_are_undefined(kind):
    counts = resamples(5, seed=0)
    y = np.arange(5.0)
    for x in (
        np.ones(5),
        np.array([1.0, 2.0, math.nan, 3.0, 4.0]),
        np.array([1.0, 2.0, math.inf, 3.0, 4.0]),
    ):
        assert np.isnan(kind(x, y, counts)).all()
    assert np.isnan(kind([], [], resamples(0, seed=0))).all()
    # Of three pairs a ninth of the resamples has one pair alone, and no correlation: it is left
    # out.
    found = kind([1.0, 2.0, 4.0], [1.0, 3.0, 2.0], resamples(3, seed=0))
    assert 0.05 < np.isnan(found).mean() < 0.2
    assert all(-1 <= end <= 1 for end in interval(found))
    assert all(math.isnan(end) for end in interval(np.full(4, math.nan)))
