"""A linear model of paired differences over the sizes of a study, with a random intercept of each seed."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIXED, PLAIN, NONE = "mixed", "plain", ""
"""How a model was fitted: with a random intercept of each seed (REML), by least squares alone, or not at all."""
CONFIDENCE = 0.95
"""Coverage of all intervals."""
_NO_SPREAD = 1e-6
"""A variance between seeds that is a smaller share of the residual one is none: the likelihood is flat there."""


@dataclass(frozen=True)
class Fit:
    """A fitted line; the first of ``estimates`` is the value at the centre of the covariates, the others are slopes.

    ``df`` are the degrees of freedom of each. ``centre`` are the means of the covariates. Without a fit, ``reason``
    says why, and all numbers are NaN.
    """

    method: str
    estimates: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    df: tuple[float, ...]
    centre: tuple[float, ...]
    seed_sd: float
    residual_sd: float
    reason: str

    def standard_error(self, index: int) -> float:
        """Return the standard error of an estimate."""
        return math.sqrt(self.covariance[index][index])


def t_quantile(df: float) -> float:
    """Return half the width of a two-sided interval of ``CONFIDENCE`` in standard errors."""
    from scipy.special import stdtrit

    return float(stdtrit(df, (1 + CONFIDENCE) / 2))


def upper_tail(estimate: float, standard_error: float, df: float) -> float:
    """Return the one-sided p-value of an estimate above 0; without any error it is 0, 1 or, for an estimate of 0, 1."""
    from scipy.special import stdtr

    if standard_error > 0:
        return float(stdtr(df, -estimate / standard_error))
    return math.nan if math.isnan(estimate) else float(estimate <= 0)


def no_fit(n_slopes: int, reason: str) -> Fit:
    """Return a fit that says why there is none."""
    nans = (math.nan,) * (1 + n_slopes)
    return Fit(NONE, nans, (nans,) * len(nans), nans, nans[1:], math.nan, math.nan, reason)


def fit_line(values: Sequence[float], covariates: Sequence[Sequence[float]], seeds: Sequence[int]) -> Fit:
    """Fit ``values`` of shape (n) by ``covariates`` of shape (n, slopes), with a random intercept of each seed.

    Where all covariates vary within each seed alike, as in a full grid, the intervals of the slopes are exact: they are
    those of least squares with an effect of each seed. Least squares alone is used where there is one seed, where the
    seeds differ no more than by the residuals, and where the likelihood has no maximum that the optimizer finds.
    """
    import numpy as np

    y, slopes = np.asarray(values, dtype=float), np.asarray(covariates, dtype=float).reshape(len(values), -1)
    n, n_slopes, n_seeds = len(y), slopes.shape[1], len(set(seeds))
    if n < n_slopes + 2:
        return no_fit(n_slopes, f"{n} pairs are too few for {n_slopes + 1} coefficients and a residual")
    centre = slopes.mean(axis=0)
    design = np.column_stack([np.ones(n), slopes - centre])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        return no_fit(n_slopes, "tokens and parameters vary together only")
    scale = float(y.std()) or 1.0
    within = n - n_seeds - n_slopes
    mixed = _mixed(y / scale, design, seeds) if n_seeds > 1 and within > 0 else None
    if mixed is not None:
        estimates, covariance, between, residual = mixed
        # The centre rests on the means of the seeds, the slopes on what is left within them (exact if balanced).
        df = (n_seeds - 1.0, *(float(within),) * n_slopes)
    else:
        estimates, residuals, _, _ = np.linalg.lstsq(design, y / scale, rcond=None)
        residuals = y / scale - design @ estimates
        df = (float(n - n_slopes - 1),) * (n_slopes + 1)
        between, residual = 0.0, float(residuals @ residuals) / df[0]
        covariance = residual * np.linalg.inv(design.T @ design)
    return Fit(
        method=PLAIN if mixed is None else MIXED,
        estimates=tuple((scale * estimates).tolist()),
        covariance=tuple(map(tuple, (scale**2 * covariance).tolist())),
        df=df,
        centre=tuple(centre.tolist()),
        seed_sd=scale * math.sqrt(between),
        residual_sd=scale * math.sqrt(residual),
        reason="",
    )


def _mixed(y: "NDArray[Any]", design: "NDArray[Any]", seeds: Sequence[int]) -> tuple[Any, Any, float, float] | None:
    """Return estimates, covariance and both variances by REML, None where it gives no variance between seeds."""
    import numpy as np
    from statsmodels.regression.mixed_linear_model import MixedLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a variance on the boundary, which is told below
        try:
            result = MixedLM(y, design, np.asarray(seeds)).fit(reml=True, method="bfgs", gtol=1e-10)
        except np.linalg.LinAlgError:
            return None
    between, residual = float(np.asarray(result.cov_re)[0, 0]), float(result.scale)
    if not (result.converged and residual > 0 and between > _NO_SPREAD * residual):
        return None
    k = design.shape[1]
    return np.asarray(result.fe_params), np.asarray(result.cov_params())[:k, :k], between, residual
