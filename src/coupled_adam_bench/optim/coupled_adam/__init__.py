"""Coupled Adam, a ``torch.optim.Optimizer`` that needs only torch; README.md in this folder explains its use."""

from coupled_adam_bench.optim.coupled_adam.groups import coupled_param_groups
from coupled_adam_bench.optim.coupled_adam.optimizer import CoupledAdam

__all__ = ["CoupledAdam", "coupled_param_groups"]
