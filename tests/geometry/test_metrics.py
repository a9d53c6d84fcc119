"""Geometry of random matrices against long double, and what must hold for any."""

import numpy as np
import pytest

from coupled_adam_bench.geometry.metrics import geometry, isotropy_eig_float32

LONG = np.longdouble
KINDS = ("plain", "shifted", "wide", "zero rows", "large")


def matrix(kind: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    n_rows, width = (7, 12) if kind == "wide" else (90, 7)
    e_VD = rng.normal(size=(n_rows, width)) * rng.uniform(0.2, 2, size=(n_rows, 1))
    if kind == "shifted":
        e_VD += rng.normal(size=width)
    if kind == "zero rows":
        e_VD[::9] = 0
    return 200 * e_VD if kind == "large" else e_VD  # whose exponentials overflow a float64


def long_isotropy(e_VD: np.ndarray) -> float:
    directions_DD = np.linalg.svd(e_VD)[2].T.astype(LONG)
    projections_VK = np.hstack(
        [e_VD.astype(LONG) @ directions_DD, -e_VD.astype(LONG) @ directions_DD]
    )
    z_K = np.exp(projections_VK).sum(axis=0)
    return float(z_K.min() / z_K.max())


def long_pearson(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum()))


def in_long_double(e_VD: np.ndarray, counts_V: np.ndarray) -> dict[str, float]:
    """Each metric from its formula, with whole rows and pairs of rows."""
    e = e_VD.astype(LONG)
    mean, lengths = e.mean(axis=0), np.sqrt((e**2).sum(axis=1))
    s = np.linalg.svd(e_VD, compute_uv=False).astype(LONG)
    units = e[lengths > 0] / lengths[lengths > 0][:, None]
    cosines = (units @ units.T)[~np.eye(len(units), dtype=bool)]
    p = np.zeros(len(e), LONG)
    p[: len(counts_V)] = counts_V.astype(LONG) / counts_V.sum()
    share = s / s.sum()
    norm = np.sqrt((mean**2).sum())
    return {
        "isotropy": long_isotropy(e_VD),
        "isotropy_centered": long_isotropy(e_VD - e_VD.mean(axis=0)),
        "mean_norm": float(norm),
        "mean_norm_ratio": float(norm / lengths.mean()),
        "mean_length": float(lengths.mean()),
        "kappa": float(100 * s[-1] / s[0]),
        "mean_cosine": float(cosines.mean()),
        "effective_rank": float(np.exp(-(share * np.log(share)).sum())),
        "participation_ratio": float((s**2).sum() ** 2 / (s**4).sum()),
        "rho": long_pearson(lengths, np.log(p + LONG(1e-10))),
        "mean_projection_correlation": long_pearson(e @ mean, np.log(p + LONG(1e-10))),
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_metrics_are_their_formulas(kind: str, seed: int) -> None:
    e_VD = matrix(kind, seed)
    # A padded matrix has more rows than the tokenizer has tokens.
    counts_V = np.random.default_rng(seed).integers(0, 50, size=len(e_VD) - 2)
    expected = in_long_double(e_VD, counts_V)
    # Directions of a null space are any; the smallest singular value is then no number to compare.
    if kind == "wide":
        for name in ("isotropy", "isotropy_centered"):
            expected.pop(name)
    found = geometry(e_VD, counts_V)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-12, abs=1e-13), name


@pytest.mark.parametrize("seed", range(5))
def test_isotropy_of_the_authors_code(seed: int) -> None:
    e_VD = matrix("shifted", seed)
    # Their loop, in float32 and with the eigenvectors of numpy.linalg.eig of one sign [C].
    e32 = e_VD.astype(np.float32)
    _, vectors = np.linalg.eig(e32.T @ e32)
    z = [np.exp(e32 @ vectors[:, k]).sum() for k in range(e32.shape[1])]
    found = geometry(e_VD, None, "eig_float32")
    assert found["isotropy"] == round(float(min(z) / max(z)), 4)
    assert found["isotropy_centered"] == isotropy_eig_float32(e_VD - e_VD.mean(axis=0))
    assert "rho" not in found


def test_what_any_matrix_obeys() -> None:
    e_VD = matrix("plain", 0)
    rotation_DD = np.linalg.qr(np.random.default_rng(1).normal(size=(7, 7)))[0]
    plain, rotated = geometry(e_VD), geometry(e_VD @ rotation_DD)
    assert rotated == pytest.approx(plain, rel=1e-10)
    mirrored = geometry(np.vstack([e_VD, -e_VD]))
    assert mirrored["mean_norm"] == pytest.approx(0, abs=1e-14)
    assert mirrored["isotropy"] == pytest.approx(mirrored["isotropy_centered"], rel=1e-12)
    # One direction only: the other singular values are zero.
    line_VD = np.outer(np.arange(1.0, 20), np.eye(4)[0])
    found = geometry(line_VD)
    assert found["kappa"] == 0
    assert found["effective_rank"] == pytest.approx(1)
    assert found["mean_cosine"] == pytest.approx(1)
