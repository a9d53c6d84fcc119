"""Learning rate against step."""

import math

from coupled_adam_bench.config import Training


def learning_rate_factor(step: int, steps: int, training: Training) -> float:
    """Return the learning rate of step ``step`` (from 0) of ``steps`` as a fraction of the peak.

    Linear warmup, (step + 1) / (warmup_steps + 1), then a cosine from 1 to ``min_lr_ratio`` at ``steps`` [P][C].
    """
    if step < training.warmup_steps:
        return (step + 1) / (training.warmup_steps + 1)
    progress = (step - training.warmup_steps) / max(1, steps - training.warmup_steps)
    return training.min_lr_ratio + (1 - training.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
