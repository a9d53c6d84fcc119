"""What is watched while a cell trains: loss spikes, memory, and the share of the device's peak that is used."""

import math
import resource
from collections.abc import Sequence
from typing import Any

import torch

# Dense bf16 matmul peaks in FLOP/s, from the vendors' data sheets; a device that is not here has no MFU.
_PEAK_FLOPS = {
    "H200": 989e12,
    "H100": 989e12,  # SXM; the PCIe card has 756e12
    "A100": 312e12,
    "L40S": 362e12,
    "V100": 125e12,  # fp16
}


def peak_flops(device: torch.device) -> float | None:
    """Return the peak of a known GPU in FLOP/s, ``None`` for others and for CPUs."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for key, peak in _PEAK_FLOPS.items() if key in name), None)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory that was in use so far: of the GPU's allocator, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class SpikeMonitor:
    """Finds losses far above what the steps before let expect.

    A spike lies more than ``SIGMAS`` standard deviations above the mean. Both are exponentially weighted over about the
    last ``HORIZON`` steps; the deviation is that of successive differences, over sqrt(2), which a falling loss leaves
    alone. Nothing is said of the first ``HORIZON`` steps.
    """

    HORIZON = 50
    SIGMAS = 6.0

    def __init__(self) -> None:
        self.steps = 0
        self.mean = 0.0
        self.last = 0.0
        self.variance = 0.0
        self.spikes: list[dict[str, Any]] = []

    def to_json(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {**vars(self), "spikes": list(self.spikes)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a state from :meth:`to_json`."""
        vars(self).update(state)

    def update(self, losses: Sequence[float]) -> list[dict[str, Any]]:
        """Take the losses of the next steps and return the spikes among them: step (from 1), loss, expected."""
        found = []
        for loss in losses:
            self.steps += 1
            if not math.isfinite(loss):
                continue  # divergence, which ends the run
            limit = self.SIGMAS * math.sqrt(self.variance)
            excess, difference = loss - self.mean, loss - self.last
            if self.steps > self.HORIZON:
                if excess > limit:
                    found.append({"step": self.steps, "loss": loss, "expected": self.mean})
                # One spike must not hide the next, while a new level becomes the expected one.
                excess, difference = min(excess, 5 * limit), max(-limit, min(difference, limit))
            weight = max(1 / self.HORIZON, 1 / self.steps)
            if self.steps > 1:
                self.variance += weight * (difference**2 / 2 - self.variance)
            self.mean += weight * excess
            self.last = loss
        self.spikes += found
        return found
