"""How much the choice of the learning rate matters to an optimizer: one number for all that were tried."""

import math
from collections.abc import Mapping, Sequence

from coupled_adam_bench.statistics.t_test import summarize


def learning_rate_sensitivity(losses: Mapping[float, Sequence[float]], initial_loss: float) -> float:
    """Return the mean over learning rates of min(loss, ``initial_loss``), minus the least of these, in nats.

    ``losses`` are those of the seeds by learning rate; one that is not finite counts as the loss at initialisation,
    and the loss of a rate is the mean over its seeds. The definition is that of Wortsman et al. 2023 (arXiv
    2309.14322). It is NaN for fewer than two rates. Only rates of the same range and spacing can be compared.
    """
    if len(losses) < 2:
        return math.nan
    capped = [
        summarize([min(loss, initial_loss) if math.isfinite(loss) else initial_loss for loss in of_rate]).mean
        for of_rate in losses.values()
    ]
    return math.fsum(capped) / len(capped) - min(capped)
