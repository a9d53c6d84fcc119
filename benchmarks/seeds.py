"""What two seeds share under each protocol at the paper's size, and what that does to the tests of
three seeds.

Run: PYTHONPATH=src python benchmarks/seeds.py. It needs no data: the windows follow from the number
of tokens.
"""

from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from coupled_adam_bench.statistics.student import ALPHA
from coupled_adam_bench.study.settings import Training
from coupled_adam_bench.study.settings.protocols import PROTOCOLS, preset
from coupled_adam_bench.training.order import WindowOrder

OPENWEBTEXT_TOKENS = 9_035_582_198
STEPS = range(0, 203_450, 200)
"""Steps that are read of a run over 20B tokens, whose steps have 96 windows of 1,024."""
SEEDS = (1, 2, 3)
N_DRAWS = 100_000
"""Number of simulated comparisons; the standard error of a rate of 10 % is then 0.1 %."""


class Consequence(NamedTuple):
    """What the correlation of seeds does.

    ``sd_factor`` is the root of the ratio of the expected to the true variance over seeds.
    ``error_rate`` says how often one of two equal optimizers comes out significantly better; it is
    0.1 for independent seeds, since the data choose the direction of the test.
    """

    sd_factor: float
    error_rate: float


def sd_factor(correlations: NDArray[np.float64]) -> float:
    """Return sqrt(E s^2 / sigma^2) = sqrt(1 - r), r the mean correlation of two seeds; correlations
    of shape (n, n)."""
    n = len(correlations)
    mean = (correlations.sum() - n) / (n * (n - 1))
    return float(max(0.0, 1 - mean) ** 0.5)


def consequence(
    correlations: NDArray[np.float64],
    of_data: float = 1.0,
    common: float = 0.0,
    n_draws: int = N_DRAWS,
) -> Consequence:
    """Simulate comparisons of two equal optimizers whose seeds have these correlations, of shape
    (n, n).

    ``of_data`` is the share of the variance over seeds that comes from the order of the data, the
    rest is independent; ``common`` the share of it that moves both optimizers alike, as they read
    the same text under a seed. The draws are the same in each call.
    """
    n = len(correlations)
    within = of_data * correlations + (1 - of_data) * np.eye(n)
    across = common * of_data * correlations
    covariance = np.block([[within, across], [across, within]])
    values, vectors = np.linalg.eigh(covariance)
    # Rounding, or a sample of steps, may leave some below 0.
    root = vectors * np.sqrt(np.clip(values, 0, None))
    drawn = np.random.default_rng(0).standard_normal((n_draws, 2 * n)) @ root.T
    first, second = drawn[:, :n], drawn[:, n:]
    pooled = (first.var(axis=1, ddof=1) + second.var(axis=1, ddof=1)) / 2
    t = np.abs(first.mean(axis=1) - second.mean(axis=1)) / np.sqrt(2 * pooled / n)
    return Consequence(sd_factor(within), float((t > stdtrit(2 * n - 2, 1 - ALPHA)).mean()))


def share_of_step(training: Training, seed: int, other: int) -> float:
    """Return the mean share of a step's windows that two seeds have in common."""
    first = WindowOrder(OPENWEBTEXT_TOKENS, training, seed)
    second = WindowOrder(OPENWEBTEXT_TOKENS, training, other)
    return float(
        np.mean([np.isin(first.starts(step), second.starts(step)).mean() for step in STEPS])
    )


def main() -> None:
    """Print a table of shares for each protocol, and one of consequences."""
    for protocol in PROTOCOLS:
        training = Training(**preset(protocol)["training"])
        correlations = np.eye(len(SEEDS))
        print(f"{protocol}: {training.data_order}, {len(STEPS)} steps")
        for (i, seed), (j, other) in combinations(enumerate(SEEDS), 2):
            share = share_of_step(training, seed, other)
            correlations[i, j] = correlations[j, i] = share
            print(f"  seeds {seed} and {other}: {share:.4%} in the same step")
        for of_data in (1.0, 0.5, 0.25):
            for common in (0.0, 0.5):
                found = consequence(correlations, of_data, common)
                print(
                    f"  {of_data:.0%} of the variance, {common:.0%} common: sd"
                    f" {found.sd_factor:.3f}, equal optimizers significantly different in"
                    f" {found.error_rate:.1%}"
                )


if __name__ == "__main__":
    main()
