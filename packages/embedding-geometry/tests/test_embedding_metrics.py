import itertools
import math

import mpmath
import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from embedding_geometry import isotropy as isotropies
from embedding_geometry import metrics, partition, spectrum
from embedding_geometry.spectrum import (
    principal_directions,
    remove_directions,
    subtract_mean,
    subtract_scaled_mean,
    top_directions,
)


def isotropy(embeddings: np.ndarray) -> float:
    return metrics.isotropy(embeddings, "both_signs")


def matrix(seed: int, n_rows: int = 40, width: int = 5, shift: float = 0.3) -> np.ndarray:
    """Distinct singular values, so that the directions are defined, and a mean that is not zero."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_rows, width)) * np.linspace(0.2, 1.0, width) + shift


def isotropy_in_plain_words(rows: list[list[float]], directions: list[list[float]]) -> float:
    """Definition with loops and 50 digits."""
    with mpmath.workdps(50):
        z = [
            mpmath.fsum(
                mpmath.exp(
                    sign * mpmath.fsum(mpmath.mpf(a) * b for a, b in zip(c, row, strict=True))
                )
                for row in rows
            )
            for c in directions
            for sign in (1, -1)
        ]
        return float(min(z) / max(z))


def test_isotropy_by_hand():
    # E^T E = diag(8, 2): the directions are the axes; both signs of each.
    embeddings = np.array([[2.0, 1.0], [-2.0, 1.0]])
    z = [math.exp(2) + math.exp(-2), math.exp(2) + math.exp(-2), 2 * math.exp(1), 2 * math.exp(-1)]
    assert isotropy(embeddings) == pytest.approx(min(z) / max(z), rel=1e-14)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_isotropy_against_the_definition(scale):
    embeddings = matrix(1) * scale
    directions = np.linalg.svd(embeddings)[2]  # another route to the eigenvectors of E^T E
    expected = isotropy_in_plain_words(embeddings.tolist(), directions.tolist())
    assert isotropy(embeddings) == pytest.approx(expected, rel=1e-9)


def test_isotropy_does_not_overflow():
    assert isotropy(1e4 * matrix(2)) == 0.0  # exp(-10^4) and smaller
    assert isotropy(np.full((3, 2), 1e4)) == 0.0


@pytest.mark.parametrize("variant", ["both_signs", "eig_float32"])
@pytest.mark.parametrize(("n_rows", "n_left_out"), [(40, 1), (1000, 1), (1001, 2), (2500, 3)])
def test_the_trimmed_isotropy_is_that_without_the_longest_rows(variant, n_rows, n_left_out):
    embeddings = matrix(4, n_rows=n_rows)
    embeddings[::97] *= 3  # long rows everywhere, so that some are at the end already
    before = embeddings.copy()
    rest = embeddings[np.argsort(np.linalg.norm(embeddings, axis=1))][:-n_left_out]
    expected = metrics.isotropy(rest, variant)
    assert metrics.isotropy_trimmed(embeddings, variant) == pytest.approx(
        expected, rel=1e-9, abs=1e-4
    )
    if variant == "both_signs":
        assert metrics.isotropy_trimmed(embeddings, variant) == pytest.approx(expected, rel=1e-9)
    np.testing.assert_array_equal(embeddings, before)


def test_one_long_row_decides_the_isotropy_and_not_the_trimmed_one():
    embeddings = np.random.default_rng(5).normal(size=(1000, 6)) / 6
    even = metrics.isotropy_trimmed(embeddings, "both_signs")
    embeddings[7] *= 40 / np.linalg.norm(embeddings[7])
    assert metrics.isotropy(embeddings, "both_signs") < 1e-10
    assert metrics.isotropy_trimmed(embeddings, "both_signs") == pytest.approx(even, abs=0.01)
    assert even > 0.8


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("shift", [0.0, 0.3, 20.0])
def test_the_parts_of_isotropy_against_the_definition(scale, shift):
    """The definition of Iso (Mu & Viswanath 2018) with loops, of the matrix that the name says."""
    embeddings = matrix(12, shift=shift) * scale
    before = embeddings.copy()
    centered = embeddings - embeddings.mean(axis=0)

    def at_one_length(rows):
        return rows / math.sqrt(np.square(rows).sum() / len(rows))

    changed = {
        "isotropy_centered": centered,
        "isotropy_common_length": at_one_length(embeddings),
        "isotropy_centered_common_length": at_one_length(centered),
    }
    found = metrics.embedding_metrics(embeddings, None, "both_signs")
    for name, rows in changed.items():
        expected = isotropy_in_plain_words(rows.tolist(), np.linalg.svd(rows)[2].tolist())
        assert getattr(metrics, name)(embeddings) == pytest.approx(expected, rel=1e-9), name
        assert found[name] == pytest.approx(expected, rel=1e-9), name
    np.testing.assert_array_equal(embeddings, before)


@pytest.mark.parametrize("shift", [0.0, 0.01, 2.0])
@pytest.mark.parametrize("length", [0.1, 1.0, 30.0])
def test_the_parts_of_isotropy_in_blocks_of_directions(shift, length):
    """A wide matrix has more directions than a block, so that bounds say which are multiplied."""
    width = 4 * partition.COLUMNS
    drawn = matrix(13, n_rows=500, width=width, shift=0.0)
    embeddings = length * (drawn + shift) / math.sqrt(width)
    centered = embeddings - embeddings.mean(axis=0)
    for name, rows in {
        "isotropy_centered": centered,
        "isotropy_common_length": embeddings / math.sqrt(np.square(embeddings).sum() / 500),
        "isotropy_centered_common_length": centered / math.sqrt(np.square(centered).sum() / 500),
    }.items():
        projections = rows @ np.linalg.svd(rows)[2].T
        log_z = np.concatenate(
            [scipy.special.logsumexp(sign * projections, axis=0) for sign in (1, -1)]
        )
        expected = math.exp(log_z.min() - log_z.max())
        assert getattr(metrics, name)(embeddings) == pytest.approx(expected, rel=1e-8), name


def test_mean_and_length_are_what_the_parts_of_isotropy_do_not_see():
    embeddings = matrix(14)
    moved, longer = embeddings + 1.5, 2.5 * embeddings
    for function in (metrics.isotropy_centered, metrics.isotropy_centered_common_length):
        assert function(moved) == pytest.approx(function(embeddings), rel=1e-9)
    for function in (metrics.isotropy_common_length, metrics.isotropy_centered_common_length):
        assert function(longer) == pytest.approx(function(embeddings), rel=1e-9)
    assert metrics.isotropy_centered(longer) < metrics.isotropy_centered(embeddings) - 0.01
    assert metrics.isotropy_common_length(moved) < metrics.isotropy_common_length(embeddings) - 0.01


def test_rows_without_length_or_spread_have_no_isotropy_at_one_length():
    equal = np.full((6, 4), -0.7)
    assert math.isnan(metrics.isotropy_common_length(np.zeros((4, 3))))
    for rows in (equal, np.array([[0.3, -0.4]]), np.full((7, 3), 0.1) / 3):
        assert metrics.isotropy_centered(rows) == pytest.approx(1.0, abs=1e-9)
        assert math.isnan(metrics.isotropy_centered_common_length(rows))
        assert 0 < metrics.isotropy_common_length(rows) < 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_trimmed_isotropy_of_nothing_is_missing(value):
    assert math.isnan(metrics.isotropy_trimmed(np.ones((1, 3)), "both_signs"))
    embeddings = matrix(6)
    embeddings[3, 1] = value
    assert math.isnan(metrics.isotropy_trimmed(embeddings, "both_signs"))


def test_isotropy_in_blocks_of_directions():
    embeddings = matrix(3, n_rows=200, width=2 * partition.COLUMNS + 3)
    one_by_one = [embeddings @ c for c in np.linalg.svd(embeddings)[2]]
    z = [np.exp(sign * projection).sum() for projection in one_by_one for sign in (1, -1)]
    assert isotropy(embeddings) == pytest.approx(min(z) / max(z), rel=1e-9)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_invariances(seed):
    embeddings = matrix(seed)
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    log_probability = np.log(rng.dirichlet(np.ones(40)) + 1e-10)
    changed = {
        "rotation": embeddings @ rotation,
        "reflection": -embeddings,
        "order of rows": embeddings[::-1],
    }
    for name, other in changed.items():
        log_p = log_probability[::-1] if name == "order of rows" else log_probability
        assert isotropy(other) == pytest.approx(isotropy(embeddings), rel=1e-7), name
        assert metrics.kappa(other) == pytest.approx(metrics.kappa(embeddings), rel=1e-9), name
        assert metrics.mean_norm(other) == pytest.approx(
            metrics.mean_norm(embeddings), rel=1e-12
        ), name
        assert metrics.mean_norm_ratio(other) == pytest.approx(
            metrics.mean_norm_ratio(embeddings), rel=1e-12
        ), name
        assert metrics.rho(other, log_p) == pytest.approx(
            metrics.rho(embeddings, log_probability), abs=1e-12
        ), name
        projections = [
            metrics.mean_projection_correlation(e, p)
            for e, p in ((other, log_p), (embeddings, log_probability))
        ]
        assert projections[0] == pytest.approx(projections[1], abs=1e-12), name
    for scale in (1e-2, 7.0):
        assert metrics.mean_norm(scale * embeddings) == pytest.approx(
            scale * metrics.mean_norm(embeddings), rel=1e-12
        )
        assert metrics.mean_length(scale * embeddings) == pytest.approx(
            scale * metrics.mean_length(embeddings), rel=1e-12
        )
        for blind in (metrics.kappa, metrics.mean_norm_ratio):
            assert blind(scale * embeddings) == pytest.approx(blind(embeddings), rel=1e-9)
        assert metrics.rho(scale * embeddings, log_probability) == pytest.approx(
            metrics.rho(embeddings, log_probability)
        )
    assert 0 < isotropy(embeddings) <= 1
    assert 0 <= metrics.mean_norm_ratio(embeddings) <= 1


def isotropies_of_all_signs(embeddings: np.ndarray) -> list[float]:
    """The isotropy for every choice of one sign for each eigenvector, in float64 through the
    SVD."""
    directions = np.linalg.svd(embeddings)[2]
    values = []
    for signs in itertools.product((1, -1), repeat=len(directions)):
        z = [
            np.exp(embeddings @ (sign * c)).sum() for sign, c in zip(signs, directions, strict=True)
        ]
        values.append(min(z) / max(z))
    return values


@pytest.mark.parametrize("seed", range(10))
def test_isotropy_of_the_authors_is_that_of_some_signs(seed):
    embeddings = matrix(seed, width=4)
    found = metrics.isotropy(embeddings, "eig_float32")
    assert found == round(found, 4)
    possible = isotropies_of_all_signs(embeddings)
    assert max(possible) - min(possible) > 0.01  # the signs matter
    assert min(abs(found - value) for value in possible) <= 0.5e-4 + 1e-6
    assert isotropy(embeddings) <= min(possible) + 1e-12
    assert isotropy(embeddings) <= found + 1e-4


def test_isotropy_of_the_authors_with_the_signs_of_the_solver():
    embeddings = matrix(14, n_rows=300, width=2 * partition.COLUMNS + 3, shift=0.01).astype(
        np.float32
    )
    directions = np.linalg.eig(embeddings.T @ embeddings)[1]
    z = [math.fsum(math.exp(float(c @ row)) for row in embeddings) for c in np.real(directions).T]
    assert metrics.isotropy(embeddings.astype(np.float64), "eig_float32") == pytest.approx(
        min(z) / max(z), abs=0.6e-4
    )


def test_isotropy_of_the_authors_where_float32_ends():
    assert metrics.isotropy(np.full((3, 2), 1e4), "eig_float32") == 0.0  # exp(10^4) is infinite
    assert metrics.isotropy(np.zeros((3, 2)), "eig_float32") == 1.0
    assert math.isnan(metrics.isotropy(np.full((3, 2), 1e30), "eig_float32"))  # E^T E is infinite
    assert math.isnan(metrics.isotropy(np.full((3, 2), math.nan), "eig_float32"))


def test_larger_mean_is_less_isotropic():
    values = [isotropy(matrix(0, shift=shift)) for shift in (0.0, 0.5, 1.0, 2.0)]
    assert values == sorted(values, reverse=True)


def test_norms_by_hand():
    embeddings = np.array([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]])
    assert metrics.mean_norm(embeddings) == pytest.approx(math.sqrt(1 + 4), rel=1e-15)
    assert metrics.mean_length(embeddings) == pytest.approx(7 / 3, rel=1e-15)
    assert metrics.mean_norm_ratio(embeddings) == pytest.approx(math.sqrt(5) / (7 / 3), rel=1e-15)


@pytest.mark.parametrize("shape", [(40, 5), (5, 5), (3, 5), (1, 5), (40, 1)])
def test_kappa_is_the_ratio_of_singular_values(shape):
    embeddings = matrix(4, *shape)
    singular = np.linalg.svd(embeddings, compute_uv=False)
    assert metrics.kappa(embeddings) == pytest.approx(100 * singular[-1] / singular[0], rel=1e-9)


def test_kappa_keeps_its_digits_for_small_values():
    embeddings = matrix(5, shift=0.0) * np.array([1.0, 1.0, 1.0, 1.0, 1e-9])
    singular = np.linalg.svd(embeddings, compute_uv=False)
    assert metrics.kappa(embeddings) == pytest.approx(100 * singular[-1] / singular[0], rel=1e-4)
    assert (
        metrics.kappa(embeddings[:, [0, 1, 2, 0]]) < 1e-12
    )  # the root of the eigenvalue would be about 1e-6


def test_correlations_with_log_probability():
    embeddings = matrix(6)
    counts = np.array([0, 0, *range(1, 37)])  # two rows fewer than the matrix
    probability = np.array([*counts / counts.sum(), 0.0, 0.0])
    log_probability = np.array([math.log(p + 1e-10) for p in probability])
    lengths = [math.sqrt(math.fsum(x * x for x in row)) for row in embeddings]
    towards_mean = [float(np.dot(row, embeddings.mean(axis=0))) for row in embeddings]
    found = metrics.embedding_metrics(embeddings, counts, "both_signs")
    assert found["rho"] == pytest.approx(
        scipy.stats.pearsonr(lengths, log_probability).statistic, abs=1e-12
    )
    assert found["mean_projection_correlation"] == pytest.approx(
        scipy.stats.pearsonr(towards_mean, log_probability).statistic, abs=1e-12
    )
    np.testing.assert_allclose(
        metrics.log_unigram_probability(counts, 40), log_probability, rtol=1e-14
    )


def test_all_metrics_are_those_of_the_single_functions():
    embeddings = matrix(7)
    found = metrics.embedding_metrics(embeddings, np.arange(40), "both_signs")
    for name in ("mean_norm", "mean_norm_ratio", "mean_length", "kappa"):
        assert found[name] == pytest.approx(getattr(metrics, name)(embeddings), rel=1e-12)
    assert found["isotropy"] == pytest.approx(isotropy(embeddings), rel=1e-12)
    as_authors = metrics.embedding_metrics(embeddings, np.arange(40), "eig_float32")
    assert as_authors["isotropy"] == isotropies.isotropy_eig_float32(embeddings)
    for name in ("isotropy", "isotropy_trimmed"):
        assert as_authors.pop(name) != found.pop(name)
    assert as_authors == found


def test_degenerate_matrices():
    zero = metrics.embedding_metrics(np.zeros((4, 3)), np.ones(4, dtype=np.int64), "both_signs")
    assert (zero["isotropy"], zero["mean_norm"], zero["mean_length"]) == (1.0, 0.0, 0.0)
    assert all(
        math.isnan(zero[name])
        for name in ("mean_norm_ratio", "kappa", "rho", "mean_projection_correlation")
    )

    row = np.array([[0.3, -0.4]])  # Z is exp(+-0.5) along it and 1 across
    one = metrics.embedding_metrics(row, np.array([9]), "both_signs")
    assert one["isotropy"] == pytest.approx(math.exp(-1.0), rel=1e-14)
    assert (one["mean_norm"], one["mean_norm_ratio"], one["kappa"]) == pytest.approx(
        (0.5, 1.0, 100.0), rel=1e-14
    )
    assert math.isnan(one["rho"])

    with_zero_row = np.vstack([matrix(8), np.zeros(5)])
    found = metrics.embedding_metrics(with_zero_row, np.arange(41), "both_signs")
    assert all(math.isfinite(value) for value in found.values())


def test_a_nan_is_not_hidden():
    embeddings = matrix(9)
    embeddings[17, 3] = math.nan
    found = metrics.embedding_metrics(embeddings, np.arange(40), "both_signs")
    assert all(math.isnan(value) for value in found.values())


@pytest.mark.parametrize("counts", [np.arange(41), np.zeros(5), np.array([3, -1]), np.ones((2, 2))])
def test_wrong_counts(counts):
    with pytest.raises(ValueError, match="unigram_counts"):
        metrics.embedding_metrics(matrix(0), counts, "both_signs")


def test_subtract_mean():
    embeddings = matrix(10)
    centered = subtract_mean(embeddings)
    np.testing.assert_allclose(centered.mean(axis=0), 0, atol=1e-15)
    np.testing.assert_allclose(
        centered[3] - centered[11], embeddings[3] - embeddings[11], atol=1e-15
    )


def test_subtract_scaled_mean_in_plain_words(monkeypatch):
    monkeypatch.setattr(spectrum, "_ROWS", 7)
    embeddings = np.vstack([matrix(10), np.zeros(5)])
    before = embeddings.copy()
    directions = [row / math.sqrt(math.fsum(row * row)) for row in embeddings[:-1]]
    mean = [math.fsum(column) / 40 for column in zip(*directions, strict=True)]
    expected = [
        [x - math.sqrt(math.fsum(row * row)) * m for x, m in zip(row, mean, strict=True)]
        for row in embeddings
    ]
    np.testing.assert_allclose(subtract_scaled_mean(embeddings), expected, atol=1e-14)
    np.testing.assert_array_equal(embeddings, before)
    np.testing.assert_array_equal(subtract_scaled_mean(np.zeros((3, 2))), np.zeros((3, 2)))


def test_in_place_is_the_same():
    for change in (subtract_mean, subtract_scaled_mean):
        embeddings = matrix(10)
        expected = change(embeddings)
        assert change(embeddings, out=embeddings) is embeddings
        np.testing.assert_array_equal(embeddings, expected)


@pytest.mark.parametrize(("n_rows", "width", "n_removed"), [(40, 5, 1), (40, 5, 3), (5000, 250, 2)])
def test_all_but_the_top(n_rows, width, n_removed):
    """Mu & Viswanath remove D/100 directions; several blocks of rows, and also where D/100 is below
    1."""
    assert (top_directions(5), top_directions(250), top_directions(2048)) == (1, 2, 20)
    embeddings = matrix(11, n_rows=n_rows, width=width)
    centered = embeddings - embeddings.mean(axis=0)
    left, singular, right = np.linalg.svd(centered, full_matrices=False)
    singular[:n_removed] = 0
    found = subtract_mean(embeddings)
    top_DK = principal_directions(found)[:, width - n_removed :]
    np.testing.assert_allclose(remove_directions(found, top_DK), left * singular @ right, atol=1e-9)
