"""Builds a user's own optimizer from its dotted path; every error names the field of the study to
correct."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from coupled_adam_bench.study.plan.dotted import changed_code, failure, import_object
from coupled_adam_bench.study.settings import CustomSettings


def resolve(path: str) -> type[torch.optim.Optimizer]:
    """Return the class at ``module.Class``; ``ValueError`` if there is none or it is no
    optimizer."""
    kind = import_object(path)
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise ValueError(f"path: {path} is no subclass of torch.optim.Optimizer")
    return kind


def build(
    optimizer: CustomSettings, embeddings: Sequence[Tensor], lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Return the optimizer of ``embeddings``; raise ``ValueError`` if it refuses its arguments or
    is not supported.

    ``lr`` is the peak learning rate, and the code must be that of the cell. A class with an
    argument ``weight_decay`` always gets the study's, even if that is 0, because no setting records
    the default of the class.
    """
    kind: Callable[..., torch.optim.Optimizer] = resolve(optimizer.path)
    # After the import: a file that is edited now was read before.
    changed = optimizer.code is not None and changed_code(optimizer.path, optimizer.code)
    if changed:
        raise ValueError(
            f"path: {optimizer.path} is not the code with which the study was started ({changed});"
            " start the workflow again, which trains with the code that is here now, or restore it"
        )
    arguments: dict[str, Any] = dict(optimizer.arguments)
    signature = inspect.signature(kind)
    if "weight_decay" in signature.parameters:
        arguments["weight_decay"] = weight_decay
    elif weight_decay:
        raise ValueError(
            f"weight_decay: {weight_decay:g}, but {optimizer.path} takes none; set it to 0"
        )
    try:
        signature.bind(embeddings, lr=lr, **arguments)
    except TypeError as error:
        takes = ", ".join(str(parameter) for parameter in signature.parameters.values())
        raise ValueError(f"arguments: {error}; {optimizer.path} takes ({takes})") from None
    try:
        built = kind(embeddings, lr=lr, **arguments)
    except Exception as error:  # a constructor may raise anything
        raise ValueError(f"arguments: {optimizer.path} refuses them {failure(error)}") from error
    if callable(getattr(built, "train", None)) and callable(getattr(built, "eval", None)):
        raise ValueError(
            f"path: {optimizer.path} has two modes, train() and eval(), as schedule-free optimizers"
            " have; these are not supported: checkpoints and evaluation would see the weights of"
            " the wrong one"
        )
    if not all(isinstance(group.get("lr"), float) for group in built.param_groups):
        raise ValueError(
            f"path: {optimizer.path} keeps no learning rate `lr` in its groups for the schedule"
            " to set"
        )
    return built
