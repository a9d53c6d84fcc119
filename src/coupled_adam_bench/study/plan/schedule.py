"""The learning rate as a function of the step."""

import math

from coupled_adam_bench.study.settings import Training


def learning_rate_factor(step: int, steps: int, training: Training, peak: float) -> float:
    """Return the learning rate of step ``step`` (from 0) of ``steps`` as a fraction of its
    ``peak``.

    A linear warmup is followed by ``training.schedule``. A decay falls from 1 to ``min_lr_ratio``,
    or to ``min_learning_rate``, which it would reach at step ``steps``, one after the last. It is a
    cosine [P][C] or a line; for ``wsd`` the line covers the last steps. The first step of a decay
    is at the peak, so n steps of it lower n - 1 rates, as in ``get_wsd_schedule`` of transformers.
    """
    warmup = training.warmup(steps)
    if step < warmup:
        return step / warmup if training.warmup_from == "zero" else (step + 1) / (warmup + 1)
    # This is the last step at the peak.
    begin = training.decay_start(steps) - 1 if training.schedule == "wsd" else warmup
    progress = min(1.0, max(0, step - begin) / max(1, steps - begin))
    match training.schedule:
        case "constant":
            height = 1.0
        case "cosine":
            height = 0.5 * (1 + math.cos(math.pi * progress))
        case "linear" | "wsd":
            height = 1 - progress
    end = training.final_lr_ratio(peak)
    return end + (1 - end) * height
