import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedding_geometry import isotropy as isotropies
from embedding_geometry import partition
from embedding_geometry.metrics import embedding_geometry, embedding_metrics, mean_cosine
from embedding_geometry.spectrum import (
    effective_rank,
    gram,
    participation_ratio,
    principal_components,
    principal_directions,
)


def matrix(seed: int, n_rows: int = 40, width: int = 5, shift: float = 0.3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_rows, width)) * np.linspace(0.2, 1.0, width) + shift


def slow_mean_cosine(rows: np.ndarray) -> float:
    """The mean over all pairs, with loops."""
    cosines = []
    for a, b in itertools.combinations(rows.tolist(), 2):
        norms = math.sqrt(math.fsum(x * x for x in a)) * math.sqrt(math.fsum(x * x for x in b))
        cosines.append(math.fsum(x * y for x, y in zip(a, b, strict=True)) / norms)
    return math.fsum(cosines) / len(cosines)


def slow_effective_rank(rows: np.ndarray) -> float:
    singular = np.linalg.svd(rows, compute_uv=False).tolist()
    shares = [value / math.fsum(singular) for value in singular]
    return math.prod(share**-share for share in shares if share > 0)


def slow_participation_ratio(rows: np.ndarray) -> float:
    """From traces, without singular values."""
    gram = rows.T @ rows
    return float(np.trace(gram) ** 2 / np.trace(gram @ gram))


SLOW = {
    "mean_cosine": slow_mean_cosine,
    "effective_rank": slow_effective_rank,
    "participation_ratio": slow_participation_ratio,
}
TRAINED_LIKE = (
    np.random.default_rng(5).normal(size=(60, 12)) * np.geomspace(1, 0.05, 12) * 0.1 + 0.2
)
MATRICES = {
    "random": matrix(0),
    "a huge mean": matrix(1, shift=1e4),
    "wide": matrix(2, n_rows=3, width=7),
    "rank one": np.outer(np.arange(1.0, 8.0), [1.0, -2.0, 0.5]),
    "constant": np.full((6, 4), -0.7),
    "like trained": TRAINED_LIKE,
    "tiny": 1e-8 * matrix(3),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("metric", SLOW)
def test_against_slow_formulas(name, metric):
    found = embedding_metrics(MATRICES[name], np.arange(1, len(MATRICES[name]) + 1), "both_signs")
    assert found[metric] == pytest.approx(SLOW[metric](MATRICES[name]), rel=1e-6, abs=1e-12)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_invariances(seed):
    embeddings = matrix(seed)
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    counts = np.arange(1, 41)
    first = embedding_metrics(embeddings, counts, "both_signs")
    for changed in (
        embeddings @ rotation,
        -embeddings,
        rng.permutation(embeddings),
        3.7 * embeddings,
    ):
        found = embedding_metrics(changed, counts, "both_signs")
        for metric in SLOW:
            assert found[metric] == pytest.approx(first[metric], rel=1e-9, abs=1e-12)


def test_by_hand():
    # Cosines of the pairs: 0, -1, 0; a row of zeros has no direction.
    rows = np.array([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [0.0, 0.0]])
    assert mean_cosine(rows) == pytest.approx(-1 / 3, rel=1e-15)
    assert effective_rank(np.array([2.0, 2.0, 2.0, 2.0])) == pytest.approx(4, rel=1e-15)
    assert effective_rank(np.array([5.0, 0.0])) == 1.0
    assert participation_ratio(np.array([1.0, 1.0, 0.0])) == pytest.approx(2, rel=1e-15)
    assert participation_ratio(np.array([2e160, 1e160])) == pytest.approx(25 / 17, rel=1e-15)


def test_where_they_are_undefined():
    assert math.isnan(mean_cosine(np.zeros((4, 3)))) and math.isnan(mean_cosine(np.ones((1, 3))))
    assert math.isnan(effective_rank(np.zeros(3))) and math.isnan(participation_ratio(np.zeros(3)))
    embeddings = matrix(4)
    embeddings[7, 2] = math.nan
    found = embedding_geometry(embeddings, None, "both_signs")
    assert all(math.isnan(value) for value in found.metrics.values())
    assert np.isnan(found.singular_values).all()


def test_metrics_of_frequency_are_left_out_without_counts():
    with_counts = embedding_metrics(matrix(4), np.arange(40), "both_signs")
    found = embedding_metrics(matrix(4), None, "both_signs")
    assert with_counts.keys() - found.keys() == {"rho", "mean_projection_correlation"}
    assert found == {name: with_counts[name] for name in found}


@pytest.mark.parametrize("shape", [(40, 5), (5, 5), (3, 5), (1, 4), (7, 1)])
def test_the_whole_spectrum(shape):
    embeddings = matrix(6, *shape)
    singular, directions = principal_components(embeddings)
    np.testing.assert_allclose(singular, np.linalg.svd(embeddings, compute_uv=False), rtol=1e-9)
    np.testing.assert_allclose(directions.T @ directions, np.eye(shape[1]), atol=1e-12)


def test_small_singular_values_keep_their_digits():
    left = np.linalg.qr(np.random.default_rng(0).normal(size=(50, 4)))[0]
    singular, _ = principal_components(left * np.array([1.0, 1e-2, 1e-4, 1e-7]))
    np.testing.assert_allclose(singular, [1.0, 1e-2, 1e-4, 1e-7], rtol=1e-8)


def isotropy_of_all(embeddings: np.ndarray) -> float:
    """The definition in float64, by products with the directions of an SVD, all of them."""
    projections = embeddings @ np.linalg.svd(embeddings)[2].T
    log_z = []
    for signed in (projections, -projections):
        peak = signed.max(axis=0)
        log_z.append(peak + np.log(np.exp(signed - peak).sum(axis=0)))
    return math.exp(np.min(log_z) - np.max(log_z))


@pytest.mark.parametrize("scale", [1e-6, 0.02, 1.0, 30.0, 400.0])
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_isotropy_is_that_of_all_directions(scale, shift):
    width = partition.COLUMNS + 30
    embeddings = scale * matrix(7, n_rows=800, width=width, shift=shift)
    assert isotropies.isotropy(embeddings, "both_signs") == pytest.approx(
        isotropy_of_all(embeddings), rel=1e-9
    )


@pytest.mark.parametrize("scale", [1e-160, 1e-6, 0.02, 0.1, 1.0, 4.0, 100.0])
@pytest.mark.parametrize("shift", [0.0, 0.02, 0.5])
def test_the_bounds_never_leave_out_the_extremes(scale, shift):
    embeddings = scale * matrix(9, n_rows=400, width=3 * partition.COLUMNS + 40, shift=shift)
    directions = principal_directions(embeddings)
    projections = embeddings @ directions
    log_z = np.array(
        [np.logaddexp.reduce(signed, axis=0) for signed in (projections, -projections)]
    )
    extremes = {int(log_z.min(axis=0).argmin()), int(log_z.max(axis=0).argmax())}
    bounds = partition.Bounds(embeddings, directions, None)
    multiplied, smallest, largest = set(), math.inf, -math.inf
    left = bounds.possible(np.arange(directions.shape[1]), smallest, largest)
    while len(left) > 0:
        # Whatever was multiplied until now, the extremes are among it or still possible.
        assert extremes <= multiplied | set(left.tolist())
        found = bounds.multiply(left[:20])
        np.testing.assert_allclose(found, log_z[:, left[:20]], rtol=1e-9, atol=1e-12)
        smallest, largest = min(smallest, found.min()), max(largest, found.max())
        multiplied |= set(left[:20].tolist())
        left = bounds.possible(left[20:], smallest, largest)
    assert extremes <= multiplied
    # Products in float32 leave an interval around each number, and the extremes among few.
    bounds = partition.Bounds(embeddings, directions, None)
    assert extremes <= set(bounds.extremes().tolist())
    bounds = partition.Bounds(embeddings, directions, None)
    for block in np.array_split(np.arange(directions.shape[1]), 3):
        lower, upper = bounds.enclose(block)
        assert np.all(lower <= log_z[:, block] + 1e-12 * abs(log_z[:, block]))
        assert np.all(upper >= log_z[:, block] - 1e-12 * abs(log_z[:, block]))


def n_multiplied(
    embeddings: np.ndarray, monkeypatch: pytest.MonkeyPatch, product: str = "multiply"
) -> int:
    """The number of directions with which the matrix is multiplied in float64, or by ``enclose`` in
    float32."""
    counts = []
    multiply = getattr(partition.Bounds, product)

    def counted(bounds, block):
        counts.append(len(block))
        return multiply(bounds, block)

    with monkeypatch.context() as patch:
        patch.setattr(partition.Bounds, product, counted)
        isotropies.isotropy(embeddings, "both_signs")
    return sum(counts)


def test_the_bounds_leave_few_directions(monkeypatch):
    embeddings = 0.02 * matrix(9, n_rows=400, width=partition.COLUMNS + 40)
    assert n_multiplied(embeddings, monkeypatch) < 10
    for scale in (1e-14, 1e5):  # where they are closer than float64 can tell
        assert n_multiplied(scale * embeddings, monkeypatch) >= partition.COLUMNS + 40


def test_long_isotropic_rows_need_few_directions(monkeypatch):
    width = 8 * partition.COLUMNS
    rng = np.random.default_rng(11)
    embeddings = rng.normal(size=(2 * width, width)) * np.geomspace(1, 0.05, width)
    embeddings *= 3.3 / np.linalg.norm(embeddings, axis=1).mean()
    assert n_multiplied(embeddings, monkeypatch, "enclose") < width / 2
    assert n_multiplied(embeddings, monkeypatch) <= 2 * partition._FEW
    assert isotropies.isotropy(embeddings, "both_signs") == pytest.approx(
        isotropy_of_all(embeddings), rel=1e-12
    )


@pytest.mark.parametrize("long_row", [1.0, 1e9])
def test_a_known_product_changes_no_isotropy(long_row):
    embeddings = 0.05 * matrix(10, n_rows=1200, width=partition.COLUMNS + 10, shift=0.1)
    embeddings[3] *= long_row
    product = gram(embeddings)
    for function in (isotropies.isotropy, isotropies.isotropy_trimmed):
        known = function(embeddings, "both_signs", gram_DD=product)
        assert known == pytest.approx(function(embeddings, "both_signs"), rel=1e-12)


def test_the_two_ways_to_sum_agree_where_both_work():
    projections = np.random.default_rng(0).normal(scale=3.0, size=(50, 7))
    first = partition._log_z(projections.copy(), longest=20.0)
    second = partition._log_z(projections.copy(), longest=math.inf)
    np.testing.assert_allclose(first, second, rtol=1e-14)
