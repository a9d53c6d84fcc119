"""The environment of a run, recorded to explain its numbers."""

import os
import platform
from typing import Any

import numpy as np
import torch

from coupled_adam_bench.machine.revision import git_revision
from coupled_adam_bench.study.config import CustomSettings, Optimizer


def describe(device: torch.device, optimizer: Optimizer) -> dict[str, Any]:
    """Return versions, device and revision as a JSON value, with path and code of a custom optimizer."""
    own = optimizer.model_dump(include={"path", "code"}) if isinstance(optimizer, CustomSettings) else None
    return ({"optimizer": own} if own else {}) | {
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
