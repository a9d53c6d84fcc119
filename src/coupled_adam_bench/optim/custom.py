"""Builds an optimizer of the user's own from its dotted path."""

import inspect
from collections.abc import Sequence
from pkgutil import resolve_name

import torch
from torch import Tensor

from coupled_adam_bench.study.optimizers import Optimizer


def build_custom(
    optimizer: Optimizer, embeddings: Sequence[Tensor], lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Return an optimizer of the user's own; ``lr`` is its peak learning rate.

    A class that takes ``weight_decay`` is always given the study's, since no setting records the
    default of the class. ``ValueError`` if it takes none and the study's is not 0.
    """
    assert optimizer.path is not None
    kind = resolve_name(optimizer.path)
    arguments = dict(optimizer.arguments)
    if "weight_decay" in inspect.signature(kind).parameters:
        arguments["weight_decay"] = weight_decay
    elif weight_decay:
        raise ValueError(
            f"weight_decay: {weight_decay:g}, but {optimizer.path} takes none; set it to 0"
        )
    built: torch.optim.Optimizer = kind(embeddings, lr=lr, **arguments)
    return built
