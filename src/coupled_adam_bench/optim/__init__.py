"""Optimizers for embeddings; ``from coupled_adam_bench.optim import CoupledAdam`` needs only
torch."""

from coupled_adam import CoupledAdam, coupled_param_groups

__all__ = ["CoupledAdam", "coupled_param_groups"]
