"""Optimizer states as named tensors, so that a checkpoint knows parameters by name and shards."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from coupled_adam_bench.training.checkpoint import Described


def _names(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> list[str]:
    """Return the parameters' names in the order in which ``state_dict`` counts them."""
    return [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | None) or (
        isinstance(value, list | tuple) and all(_is_plain(entry) for entry in value)
    )


def export_state(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], prefix: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a state as ``<prefix>/<parameter>/<key>``, and the rest of it as a JSON value."""
    ordered = _names(optimizer, names)
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, values in state["state"].items():
        for key, value in values.items():
            name = f"{prefix}/{ordered[index]}/{key}"
            if isinstance(value, Tensor):
                tensors[name] = value
            else:
                numbers[name] = value
    groups = [
        {key: value for key, value in group.items() if key != "params" and _is_plain(value)}
        for group in state["param_groups"]
    ]
    return tensors, {"numbers": numbers, "groups": groups}


def allocate_state(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], prefix: str, described: Described
) -> dict[str, Tensor]:
    """Return a tensor for each that a checkpoint has of this state, sharded as its parameter if it has that shape."""
    parameters = {name: parameter for parameter, name in names.items()}
    tensors = {}
    for name in _names(optimizer, names):
        for key in (key for key in described if key.startswith(f"{prefix}/{name}/")):
            dtype, size = described[key].properties.dtype, described[key].size
            parameter = parameters[name]
            like = parameter.shape == size
            tensors[key] = torch.zeros_like(parameter, dtype=dtype) if like else torch.zeros(size, dtype=dtype)
    return tensors


def import_state(
    optimizer: torch.optim.Optimizer,
    names: Mapping[Tensor, str],
    prefix: str,
    tensors: Mapping[str, Tensor],
    rest: dict[str, Any],
) -> None:
    """Put a state from :func:`export_state` back into the optimizer."""
    values = {**tensors, **rest["numbers"]}
    state: dict[int, dict[str, Any]] = {}
    for index, name in enumerate(_names(optimizer, names)):
        start = f"{prefix}/{name}/"
        found = {key.removeprefix(start): value for key, value in values.items() if key.startswith(start)}
        if found:
            state[index] = found
    groups = optimizer.state_dict()["param_groups"]
    for group, saved in zip(groups, rest["groups"], strict=True):
        group |= {key: tuple(value) if isinstance(value, list) else value for key, value in saved.items()}
    optimizer.load_state_dict({"state": state, "param_groups": groups})
