"""Monitoring of training: loss spikes, memory, energy, the peak FLOP/s of the device, and the
environment of a run."""

import math
import os
import platform
import resource
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from coupled_adam_bench.machine.device import processor
from coupled_adam_bench.machine.gpus import find_gpu
from coupled_adam_bench.machine.process import git_revision
from coupled_adam_bench.study.settings import CustomSettings, Optimizer


def peak_flops(device: torch.device) -> float | None:
    """Return the peak of a known GPU in FLOP/s, or ``None`` for other GPUs and for CPUs."""
    if device.type != "cuda":
        return None
    gpu = find_gpu(torch.cuda.get_device_name(device))
    return gpu.peak_flops if gpu else None


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory so far, of the GPU's allocator or, on a CPU, of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class EnergyMeter:
    """Reads the energy that a GPU has used, in joules; NaN for a CPU, and if the driver has no
    counter.

    The driver's counter covers the whole GPU, and GPUs older than Volta have no counter. A CPU's
    counter would cover everything that the machine does.
    """

    def __init__(self, device: torch.device) -> None:
        self._counter = _energy_counter(device)
        self._last = self._counter()

    def joules(self) -> float:
        """Return the energy since the last call, at first since the meter was made."""
        last, self._last = self._last, self._counter()
        return self._last - last


def _energy_counter(device: torch.device) -> Callable[[], float]:
    if device.type != "cuda":
        return lambda: math.nan
    import pynvml

    def read() -> float:
        try:
            pynvml.nvmlInit()  # at once when it is done already
            # NVML knows nothing of CUDA_VISIBLE_DEVICES, so the GPU's own number has to say which
            # one it is.
            gpu = pynvml.nvmlDeviceGetHandleByUUID(
                f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            )
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)) / 1000
        except pynvml.NVMLError:
            return math.nan

    return read


class SpikeMonitor:
    """Finds losses far above those of the steps before.

    A spike lies more than ``SIGMAS`` standard deviations above the mean. Mean and deviation are
    exponentially weighted over about the last ``HORIZON`` steps. The deviation is that of
    successive differences, over sqrt(2), because a falling loss hardly changes it. The first
    ``HORIZON`` steps are not judged.
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
        """Take the losses of the next steps and return the spikes among them: step (from 1), loss,
        expected."""
        new_spikes = []
        for loss in losses:
            self.steps += 1
            if not math.isfinite(loss):
                continue  # this is divergence, which ends the run
            limit = self.SIGMAS * math.sqrt(self.variance)
            excess, difference = loss - self.mean, loss - self.last
            if self.steps > self.HORIZON:
                if excess > limit:
                    new_spikes.append({"step": self.steps, "loss": loss, "expected": self.mean})
                # Clipped, so that one spike does not hide the next, but a lasting new level becomes
                # the expected one.
                excess, difference = min(excess, 5 * limit), max(-limit, min(difference, limit))
            weight = max(1 / self.HORIZON, 1 / self.steps)
            if self.steps > 1:
                self.variance += weight * (difference**2 / 2 - self.variance)
            self.mean += weight * excess
            self.last = loss
        self.spikes += new_spikes
        return new_spikes


def environment(device: torch.device, optimizer: Optimizer) -> dict[str, Any]:
    """Return versions, device and revision as a JSON value, with path and code of a custom
    optimizer."""
    own = {
        f"{field}_optimizer".removeprefix("_"): entry.model_dump(include={"path", "code"})
        for field, entry in optimizer.entries.items()
        if isinstance(entry, CustomSettings)
    }
    return own | {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "git_revision": git_revision(),
    }
