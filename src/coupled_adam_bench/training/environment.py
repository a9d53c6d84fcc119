"""What a run ran on: enough to explain a number, with nothing that changes it."""

import os
import platform
from importlib.metadata import packages_distributions, version
from typing import Any

import numpy as np
import torch

from coupled_adam_bench.config import Custom, Optimizer
from coupled_adam_bench.revision import git_revision


def describe(device: torch.device, optimizer: Optimizer) -> dict[str, Any]:
    """Return versions, device and revision as a JSON value, and the packages that a user's own optimizer comes from."""
    return _optimizer_packages(optimizer) | {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})",
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "git_revision": git_revision(),
    }


def _optimizer_packages(optimizer: Optimizer) -> dict[str, Any]:
    if not isinstance(optimizer, Custom):
        return {}
    names = packages_distributions().get(optimizer.path.partition(".")[0], ())  # none for a file of the user's
    return {"optimizer_packages": {name: version(name) for name in sorted(set(names))}}
