"""A user's own optimizer, from its dotted path; every error names the field of the study to mend."""

import difflib
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from coupled_adam_bench.config import Custom


def resolve(path: str) -> type[torch.optim.Optimizer]:
    """Return the class at ``module.Class``; ``ValueError`` if there is none or it is no optimizer."""
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module may raise anything
        raise ValueError(
            f"path: cannot import {module_name!r} ({type(error).__name__}: {error}); "
            "correct the path, or install the package where the study runs"
        ) from error
    found = getattr(module, name, None)
    if found is None:
        close = difflib.get_close_matches(name, vars(module), n=1)
        raise ValueError(f"path: {module_name!r} has no {name!r}{f'; did you mean {close[0]!r}?' if close else ''}")
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise ValueError(f"path: {path} is no subclass of torch.optim.Optimizer")
    return found


def build(optimizer: Custom, embeddings: Sequence[Tensor], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Return the optimizer of ``embeddings``; ``ValueError`` for what it does not take and for what is not supported.

    ``lr`` is the peak. A class that takes a weight decay always gets the study's, 0 too: its own default is no setting.
    """
    kind: Callable[..., torch.optim.Optimizer] = resolve(optimizer.path)
    arguments: dict[str, Any] = dict(optimizer.arguments)
    signature = inspect.signature(kind)
    if "weight_decay" in signature.parameters:
        arguments["weight_decay"] = weight_decay
    elif weight_decay:
        raise ValueError(f"weight_decay: {weight_decay:g}, but {optimizer.path} takes none; set it to 0")
    try:
        signature.bind(embeddings, lr=lr, **arguments)
    except TypeError as error:
        takes = ", ".join(str(parameter) for parameter in signature.parameters.values())
        raise ValueError(f"arguments: {error}; {optimizer.path} takes ({takes})") from None
    try:
        built = kind(embeddings, lr=lr, **arguments)
    except Exception as error:  # the class says in its own way what it does not like
        raise ValueError(f"arguments: {optimizer.path} refuses them ({type(error).__name__}: {error})") from error
    if callable(getattr(built, "train", None)) and callable(getattr(built, "eval", None)):
        raise ValueError(
            f"path: {optimizer.path} has two modes, train() and eval(), as schedule-free optimizers have; "
            "these are not supported: checkpoints and evaluation would see the weights of the wrong one"
        )
    if not all(isinstance(group.get("lr"), float) for group in built.param_groups):
        raise ValueError(f"path: {optimizer.path} keeps no learning rate `lr` in its groups for the schedule to set")
    return built
