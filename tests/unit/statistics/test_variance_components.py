"""Variance components against numbers by hand, statsmodels, and simulations with known components."""

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy import stats

from coupled_adam_bench.statistics.variance_components import one_way, two_way


def drawn(a: int, b: int, sds: tuple[float, float, float], generator: np.random.Generator) -> NDArray[np.float64]:
    rows, columns, rest = (generator.standard_normal(shape) for shape in ((a, 1), (1, b), (a, b)))
    return 5 + sds[0] * rows + sds[1] * columns + sds[2] * rest


def test_two_way_by_hand() -> None:
    # Means of rows 2 and 5, of columns 2, 3.5 and 5; residuals 0 but for +-0.5 in the outer columns.
    values = np.array([[1.0, 2.0, 3.0], [3.0, 5.0, 7.0]])
    rows, columns, rest = two_way(values)
    ms_a, ms_b, ms_rest = 3 * 2 * 1.5**2 / 1, 2 * 2 * 1.5**2 / 2, 4 * 0.5**2 / 2
    assert rows.variance == pytest.approx((ms_a - ms_rest) / 3)
    assert columns.variance == pytest.approx((ms_b - ms_rest) / 2)
    assert rest.variance == pytest.approx(ms_rest)
    assert (rows.df, columns.df, rest.df) == (1, 2, 2)


def test_two_way_has_the_mean_squares_of_statsmodels() -> None:
    from statsmodels.formula.api import ols
    from statsmodels.stats.anova import anova_lm

    values = drawn(4, 3, (1.0, 0.5, 0.3), np.random.default_rng(1))
    i, j = np.indices(values.shape)
    frame = pd.DataFrame({"y": values.ravel(), "init": i.ravel(), "data": j.ravel()})
    found = anova_lm(ols("y ~ C(init) + C(data)", frame).fit())["mean_sq"]
    rows, columns, rest = two_way(values)
    assert rest.variance == pytest.approx(found["Residual"])
    assert rows.variance == pytest.approx((found["C(init)"] - found["Residual"]) / 3)
    assert columns.variance == pytest.approx((found["C(data)"] - found["Residual"]) / 4)


def test_two_way_agrees_with_restricted_maximum_likelihood() -> None:
    # In a balanced design both are the same where no estimate is below 0 (Searle et al. 1992, section 4.8).
    from statsmodels.regression.mixed_linear_model import MixedLM, VCSpec

    values = drawn(6, 5, (1.0, 0.8, 0.4), np.random.default_rng(2))
    i, j = np.indices(values.shape)
    dummies = [np.eye(size)[index.ravel()] for size, index in zip(values.shape, (i, j), strict=True)]
    one = np.ones(values.size)

    spec = VCSpec(
        ["init", "data"], [[[f"i{k}" for k in range(6)]], [[f"d{k}" for k in range(5)]]], [[d] for d in dummies]
    )
    fit = MixedLM(values.ravel(), one[:, None], groups=one, exog_vc=spec).fit()
    rows, columns, rest = two_way(values)
    assert fit.scale == pytest.approx(rest.variance, rel=1e-3)
    assert fit.vcomp == pytest.approx([rows.variance, columns.variance], rel=1e-2)


@pytest.mark.parametrize("sds", [(1.0, 0.5, 0.3), (0.0, 1.0, 1.0), (0.2, 0.0, 1.0)])
def test_known_components_are_found_without_bias_and_covered(sds: tuple[float, float, float]) -> None:
    generator = np.random.default_rng(0)
    n, true = 1500, np.square(sds)
    found = [two_way(drawn(4, 5, sds, generator)) for _ in range(n)]
    estimates = np.array([[component.variance for component in components] for components in found])
    error = estimates.std(axis=0, ddof=1) / n**0.5
    assert (np.abs(estimates.mean(axis=0) - true) < 4 * error).all()
    covered = np.mean(
        [[one.low <= value <= one.high for one, value in zip(components, true, strict=True)] for components in found],
        axis=0,
    )
    assert (covered > 0.93).all()  # 0.95, with a standard error of 0.006


def test_one_way_is_the_variance_with_its_exact_interval() -> None:
    values = np.array([1.0, 2.0, 4.0, 4.5])
    found = one_way(values)
    assert found.variance == pytest.approx(np.var(values, ddof=1))
    assert found.low == pytest.approx(3 * found.variance / stats.chi2.ppf(0.975, 3))
    assert found.high == pytest.approx(3 * found.variance / stats.chi2.ppf(0.025, 3))
    assert found.df == 3


def test_equal_values_have_no_variance() -> None:
    for component in (*two_way(np.full((3, 3), 2.0)), one_way(np.full(3, 2.0))):
        assert (component.variance, component.low, component.high) == (0.0, 0.0, 0.0)


def test_two_by_two_is_the_smallest_design() -> None:
    components = two_way(np.array([[1.0, 2.0], [4.0, 3.0]]))
    assert [component.df for component in components] == [1, 1, 1]
    assert all(component.low <= max(component.variance, 0) <= component.high for component in components)
