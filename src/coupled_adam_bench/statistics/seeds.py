"""``seeds.csv``: how much of the training text two seeds share, and what that does.

What correlated seeds do to the standard deviation over seeds and to the t-test, whose values are independent.

n: seeds of an optimizer. A run's number is taken as normal, with a correlation between any two seeds.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame
from scipy.special import stdtrit

from coupled_adam_bench.results.tidy import read_csv, typed_frame, write_csv
from coupled_adam_bench.statistics.student import ALPHA

PLACE_COLUMNS = ("data", "data_order", "streams", "batch_sequences", "seq_len", "n_tokens", "steps")
"""The columns that say which runs two seeds are compared in."""
SEED_COLUMNS: dict[str, type] = {
    "data": str, "data_order": str, "streams": int, "batch_sequences": int, "seq_len": int, "n_tokens": int,
    "steps": int, "seed": int, "other_seed": int, "shared_in_step": float, "shared_anywhere": float,
    "correlation": float, "steps_read": int, "reason": str,
}  # fmt: skip
"""Columns of seeds.csv; ``shared_anywhere`` is counted where ``steps_read`` are all, and else computed."""
N_DRAWS = 100_000
"""Number of simulated comparisons; the standard error of a rate of 10 % is then 0.1 %."""


@dataclass(frozen=True)
class Consequence:
    """What the correlation of seeds does.

    ``sd_factor`` is the root of the ratio of the expected to the true variance over seeds. ``error_rate`` says how
    often one of two equal optimizers comes out significantly better; it is 0.1 for independent seeds, since the data
    choose the direction of the test.
    """

    sd_factor: float
    error_rate: float


def sd_factor(correlations: NDArray[np.float64]) -> float:
    """Return sqrt(E s^2 / sigma^2) = sqrt(1 - r), r the mean correlation of two seeds; correlations of shape (n, n)."""
    n = len(correlations)
    mean = (correlations.sum() - n) / (n * (n - 1))
    return float(max(0.0, 1 - mean) ** 0.5)


def consequence(
    correlations: NDArray[np.float64], of_data: float = 1.0, common: float = 0.0, n_draws: int = N_DRAWS
) -> Consequence:
    """Simulate comparisons of two equal optimizers whose seeds have these correlations, of shape (n, n).

    ``of_data`` is the share of the variance over seeds that comes from the order of the data, the rest is independent;
    ``common`` the share of it that moves both optimizers alike, as they read the same text under a seed. The draws are
    the same in each call.
    """
    n = len(correlations)
    within = of_data * correlations + (1 - of_data) * np.eye(n)
    across = common * of_data * correlations
    covariance = np.block([[within, across], [across, within]])
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.clip(values, 0, None))  # rounding, or a sample of steps, may leave some below 0
    drawn = np.random.default_rng(0).standard_normal((n_draws, 2 * n)) @ root.T
    first, second = drawn[:, :n], drawn[:, n:]
    pooled = (first.var(axis=1, ddof=1) + second.var(axis=1, ddof=1)) / 2
    t = np.abs(first.mean(axis=1) - second.mean(axis=1)) / np.sqrt(2 * pooled / n)
    return Consequence(sd_factor(within), float((t > stdtrit(2 * n - 2, 1 - ALPHA)).mean()))


def write_seeds(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write ``seeds.csv`` atomically, in full precision."""
    write_csv(typed_frame(list(rows), SEED_COLUMNS), path)


def read_seeds(path: Path) -> DataFrame:
    """Read ``seeds.csv``; ``ValueError`` for a wrong column, a value of the wrong type or a duplicate row."""
    return read_csv(path, SEED_COLUMNS, (*PLACE_COLUMNS, "seed", "other_seed"))
