"""Optimizer states as named tensors, so that checkpoints can name and shard them like parameters.

A tensor is named ``<optimizer>/<parameter>/<key>``, followed by its indices and keys if it is
inside a list or mapping; in a parameter group it is named
``<optimizer>/param_groups/<index>/<key>``. Everything else is JSON, in which ``{"tuple": [...]}``,
``{"dict": [...]}`` and ``{"tensor": name, "device": type}`` encode the types that JSON lacks.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from coupled_adam_bench.optim.ember import zero_per_row
from coupled_adam_bench.training.checkpoint import Described


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the parameters in the order of their indices in ``state_dict``."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _encode(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return ``value`` as JSON and add its tensors to ``tensors``; raise ``ValueError`` for any
    other type."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name, "device": value.device.type} | _layout(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if type(value) in (list, tuple):
        entries = [_encode(entry, f"{name}/{index}", tensors) for index, entry in enumerate(value)]
        return entries if isinstance(value, list) else {"tuple": entries}
    if type(value) is dict and all(isinstance(key, int | float | str) for key in value):
        return {
            "dict": [
                [key, _encode(entry, f"{name}/{key}", tensors)] for key, entry in value.items()
            ]
        }
    raise ValueError(
        f"{name}: a {type(value).__name__} in the state of an optimizer cannot be written into a"
        " checkpoint; tensors, numbers, text, None, and lists, tuples and mappings of these can"
    )


def _layout(tensor: Tensor) -> dict[str, Any]:
    """Return the order of the dimensions in memory, or nothing for a contiguous tensor, as
    checkpoints store it.

    The order matters because products of matrices in another memory layout round differently;
    eigenvectors, for example, are stored by columns.
    """
    order = sorted(range(tensor.ndim), key=lambda dim: -tensor.stride()[dim])
    is_permuted = not tensor.is_contiguous() and tensor.permute(order).is_contiguous()
    return {"order": order} if is_permuted and not isinstance(tensor, DTensor) else {}


def _laid_out(tensor: Tensor, order: Sequence[int]) -> Tensor:
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return tensor.permute(*order).contiguous().permute(*inverse)


def _decode(value: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    """Return the value that :func:`_encode` encoded; tensors that were not on the CPU go to
    ``device``."""
    match value:
        case list():
            return [_decode(entry, tensors, device) for entry in value]
        case {"tuple": entries}:
            return tuple(_decode(entry, tensors, device) for entry in entries)
        case {"dict": entries}:
            return {key: _decode(entry, tensors, device) for key, entry in entries}
        case {"tensor": name, "device": kind}:
            tensor = tensors[name] if kind == "cpu" else tensors[name].to(device)
            return _laid_out(tensor, value["order"]) if "order" in value else tensor
    return value


def export_state(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], prefix: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a state by name, and the rest of it as a JSON value.

    Raises ``ValueError`` for a state that cannot be written or cannot be sharded. Entries of a
    parameter group that cannot be written, such as a dtype, are left out, since the constructor
    sets them.
    """
    parameters, state = _parameters(optimizer), optimizer.state_dict()
    others = [key for key in state["state"] if not isinstance(key, int)]
    others += [key for key in state if key not in ("state", "param_groups")]
    if others:
        raise ValueError(
            f"{prefix}: {', '.join(map(str, others))} in the state of an optimizer belongs to no"
            " parameter"
        )
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, values in state["state"].items():
        for key, value in values.items():
            name = f"{prefix}/{names[parameters[index]]}/{key}"
            value_tensors: dict[str, Tensor] = {}
            encoded = _encode(value, name, value_tensors)
            # A plain tensor needs no entry beside itself; a number, a container of tensors or an
            # unusual order in memory does.
            if name not in value_tensors or "order" in encoded:
                numbers[name] = encoded
            for tensor_name, tensor in value_tensors.items():
                if isinstance(tensor, DTensor) and not _is_sharded_alike(tensor, parameters[index]):
                    raise ValueError(
                        f"{tensor_name}: in shards, but not of its parameter's shape; train without"
                        " fsdp"
                    )
            tensors |= value_tensors
    groups = []
    for index, group in enumerate(state["param_groups"]):
        groups.append(dict(_writable(group, f"{prefix}/param_groups/{index}", tensors)))
    return tensors, {"numbers": numbers, "groups": groups}


def _is_sharded_alike(tensor: DTensor, parameter: Tensor) -> bool:
    """Tell whether a tensor of a state has the shape of its parameter, or its shards and a number
    for each row."""
    return tensor.shape == parameter.shape or (
        isinstance(parameter, DTensor)
        and _is_column_of(tensor.shape, parameter)
        and tensor.placements == parameter.placements
    )


def _is_column_of(shape: torch.Size, parameter: Tensor) -> bool:
    return parameter.ndim == 2 and shape == (len(parameter), 1)


def _writable(
    group: dict[str, Any], prefix: str, tensors: dict[str, Tensor]
) -> Iterator[tuple[str, Any]]:
    for key, value in group.items():
        value_tensors: dict[str, Tensor] = {}
        try:
            encoded = _encode(value, f"{prefix}/{key}", value_tensors)
        except ValueError:
            continue
        if key != "params":
            tensors |= value_tensors
            yield key, encoded


def allocate_state(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], prefix: str, described: Described
) -> dict[str, Tensor]:
    """Return an empty tensor for each of this state in a checkpoint.

    It is sharded as its parameter if it has the same shape, or a number for each row of a matrix.
    """
    tensors = {
        key: torch.zeros(value.size, dtype=value.properties.dtype)
        for key, value in described.items()
        if key.startswith(f"{prefix}/")
    }
    for parameter in _parameters(optimizer):
        for key, tensor in tensors.items():
            if not key.startswith(f"{prefix}/{names[parameter]}/"):
                continue
            if tensor.shape == parameter.shape:
                tensors[key] = torch.zeros_like(parameter, dtype=tensor.dtype)
            elif isinstance(parameter, DTensor) and _is_column_of(tensor.shape, parameter):
                tensors[key] = zero_per_row(parameter, tensor.dtype)
    return tensors


def import_state(
    optimizer: torch.optim.Optimizer,
    names: Mapping[Tensor, str],
    prefix: str,
    tensors: Mapping[str, Tensor],
    rest: dict[str, Any],
) -> None:
    """Put a state from :func:`export_state` back into the optimizer."""
    parameters, numbers = _parameters(optimizer), rest["numbers"]
    # A tensor below a key of `numbers` belongs to that value, which `_decode` puts together.
    inner = tuple(f"{outer}/" for outer in numbers)
    whole = [name for name in tensors if not name.startswith(inner)]
    state: dict[int, dict[str, Any]] = {}
    for index, parameter in enumerate(parameters):
        start = f"{prefix}/{names[parameter]}/"
        values = {
            name.removeprefix(start): tensors[name] for name in whole if name.startswith(start)
        }
        for name in (name for name in numbers if name.startswith(start)):
            values[name.removeprefix(start)] = _decode(numbers[name], tensors, parameter.device)
        if values:
            state[index] = values
    groups = optimizer.state_dict()["param_groups"]
    for group, saved in zip(groups, rest["groups"], strict=True):
        group |= {
            key: _decode(value, tensors, parameters[0].device) for key, value in saved.items()
        }
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for index, values in state.items():
        loaded = optimizer.state[parameters[index]]
        for key, value in values.items():
            loaded[key] = _as_saved(value, loaded[key])


def _as_saved(saved: Any, loaded: Any) -> Any:
    """Undo the dtype casts of ``load_state_dict``, but keep the device to which it moved the
    tensors."""
    if isinstance(saved, Tensor):
        return loaded if loaded.dtype == saved.dtype else saved.to(loaded.device)
    if isinstance(saved, list | tuple):
        return type(saved)(_as_saved(*pair) for pair in zip(saved, loaded, strict=True))
    if isinstance(saved, dict):
        return {key: _as_saved(value, loaded[key]) for key, value in saved.items()}
    return saved
