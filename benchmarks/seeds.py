"""What two seeds share under each protocol at the paper's size, and what that does to the tests of three seeds.

Run: PYTHONPATH=src python benchmarks/seeds.py. It needs no data: the windows follow from the number of tokens.
"""

from itertools import combinations

import numpy as np

from coupled_adam_bench.statistics.seeds import consequence
from coupled_adam_bench.study.config import Training
from coupled_adam_bench.study.config.protocols import PROTOCOLS, preset
from coupled_adam_bench.training.seed_overlap import draw, expected_anywhere, shared_in_step, steps_to_read

OPENWEBTEXT_TOKENS = 9_035_582_198
STEPS = 203_450  # 20B tokens of 96 windows of 1,024
SEEDS = (1, 2, 3)


def main() -> None:
    """Print a table of shares for each protocol, and one of consequences."""
    for protocol in PROTOCOLS:
        training = Training(**preset(protocol)["training"])
        read = steps_to_read(STEPS, training.batch_sequences)
        drawn = {seed: draw(OPENWEBTEXT_TOKENS, training, seed, read) for seed in SEEDS}
        correlations = np.eye(len(SEEDS))
        print(f"{protocol}: {training.data_order}, {len(read)} of {STEPS} steps")
        for (i, seed), (j, other) in combinations(enumerate(SEEDS), 2):
            share = shared_in_step(drawn[seed], drawn[other])
            correlations[i, j] = correlations[j, i] = share
            anywhere = expected_anywhere(share, OPENWEBTEXT_TOKENS, training, STEPS * training.batch_sequences)
            print(f"  seeds {seed} and {other}: {share:.4%} in the same step, {anywhere:.4%} anywhere")
        for of_data in (1.0, 0.5, 0.25):
            for common in (0.0, 0.5):
                found = consequence(correlations, of_data, common)
                print(f"  {of_data:.0%} of the variance, {common:.0%} common: sd {found.sd_factor:.3f}, "
                      f"equal optimizers significantly different in {found.error_rate:.1%}")  # fmt: skip


if __name__ == "__main__":
    main()
