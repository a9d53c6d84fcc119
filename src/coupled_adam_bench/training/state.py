"""How far a run has come, as its checkpoints have it."""

import math
from dataclasses import dataclass, field

from coupled_adam_bench.training.monitor import SpikeMonitor


@dataclass
class State:
    """The part of a checkpoint besides weights and optimizers."""

    step: int = 0
    interval_losses: list[float] = field(default_factory=list)
    """Losses of the steps since the last line of the history."""
    seconds: float = 0.0
    """Time in the training loop, summed over all sessions of a resumed run."""
    joules: float | None = 0.0
    """Energy of all GPUs in the training loop, summed likewise; None if a part of it is not
    known."""
    spikes: SpikeMonitor = field(default_factory=SpikeMonitor)
    trunk_steps: int = 0
    """Number of the steps that the cell's trunk did."""

    def add_energy(self, joules: float) -> None:
        """Add what an interval took, NaN if that is not known."""
        self.joules = None if self.joules is None or math.isnan(joules) else self.joules + joules
