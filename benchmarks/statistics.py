"""Simulates what the statistics promise: the error of group-sequential t-tests, and the cover of the trend's intervals.

Prints a line for each. The tests of the package draw less.

    python benchmarks/statistics.py [--draws 200000] [--fits 1000]
"""

import argparse
import math

import numpy as np
from scipy import stats

from coupled_adam_bench.statistics.regression import MIXED, fit_line
from coupled_adam_bench.statistics.sequential import nominal_levels

LOOKS = ((3, 5, 8), (2, 3, 4, 5), (3, 10))


def error_over_looks(looks: tuple[int, ...], spending: str, paired: bool, draws: int) -> float:
    """Return how often two equal optimizers are told apart at any look, at a stated level of 5 %."""
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(2, draws, looks[-1]))
    test = stats.ttest_rel if paired else stats.ttest_ind
    levels = nominal_levels(looks, 0.05, spending)
    crossed = [
        test(first[:, :look], second[:, :look], axis=1, alternative="greater").pvalue < level
        for look, level in zip(looks, levels, strict=True)
    ]
    return float(np.any(crossed, axis=0).mean())


def cover(seed_sd: float, fits: int) -> tuple[float, float]:
    """Return how often the 95 % interval of a slope holds it, and the share of fits with an effect of the seeds."""
    rng = np.random.default_rng(2)
    covered = mixed = 0
    for _ in range(fits):
        effects = seed_sd * rng.normal(size=3)
        rows = [
            (0.3 * x + effects[s] + rng.normal(), (x, z), s) for s in range(3) for x in (0, 1, 2) for z in (0, 1, 2)
        ]
        fit = fit_line(*zip(*rows, strict=True))
        covered += abs(fit.estimates[1] - 0.3) < stats.t.ppf(0.975, fit.df[1]) * fit.standard_error(1)
        mixed += fit.method == MIXED
    return covered / fits, mixed / fits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200_000, help="studies for each error (default: %(default)s)")
    parser.add_argument("--fits", type=int, default=1000, help="fits for each cover (default: %(default)s)")
    arguments = parser.parse_args()
    for looks in LOOKS:
        for spending in ("obrien_fleming", "pocock"):
            for paired in (False, True):
                error = error_over_looks(looks, spending, paired, arguments.draws)
                margin = 1.96 * math.sqrt(error * (1 - error) / arguments.draws)
                kind = "paired" if paired else "unpaired"
                print(f"looks {looks}, {spending}, {kind}: error {100 * error:.2f} ± {100 * margin:.2f} %")
    for seed_sd in (0.0, 0.5, 2.0):
        covered, mixed = cover(seed_sd, arguments.fits)
        print(f"spread of seeds {seed_sd:g}: cover {100 * covered:.1f} %, {100 * mixed:.0f} % of the fits are mixed")


if __name__ == "__main__":
    main()
