"""Coupled Adam, a ``torch.optim.Optimizer`` that needs only torch; the README of the distribution
explains its use."""

from coupled_adam.groups import coupled_param_groups
from coupled_adam.optimizer import CoupledAdam

__version__ = "0.1.0"
__all__ = ["CoupledAdam", "coupled_param_groups"]
