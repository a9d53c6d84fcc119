"""Simulates what stated plans promise: the error of group-sequential t-tests.

Prints a line for each. The tests of the package draw less.

    python benchmarks/stated_plans.py [--draws 200000]
"""

import argparse
import math

import numpy as np
from scipy import stats

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200_000, help="studies for each error (default: %(default)s)")
    arguments = parser.parse_args()
    for looks in LOOKS:
        for spending in ("obrien_fleming", "pocock"):
            for paired in (False, True):
                error = error_over_looks(looks, spending, paired, arguments.draws)
                margin = 1.96 * math.sqrt(error * (1 - error) / arguments.draws)
                kind = "paired" if paired else "unpaired"
                print(f"looks {looks}, {spending}, {kind}: error {100 * error:.2f} ± {100 * margin:.2f} %")


if __name__ == "__main__":
    main()
