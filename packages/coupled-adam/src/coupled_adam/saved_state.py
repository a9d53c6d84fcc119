"""Conversion of the states that CoupledAdam loads: its own, and those of ``torch.optim.AdamW``."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from coupled_adam.numbers import exact_dtype
from coupled_adam.shards import local, part_of_row

_SHARED_WITH_ADAMW = (
    "params",
    "param_names",
    "initial_lr",
    "lr",
    "betas",
    "eps",
    "weight_decay",
    "maximize",
)


def step_device(parameter: Tensor, group: dict[str, Any]) -> torch.device:
    """Return the device of a parameter's step count: the CPU, unless kernels on the parameter's
    device read it."""
    on_device = group["capturable"] or (group["fused"] and not group["coupled"])
    return parameter.device if on_device else torch.device("cpu")


def saved_group(saved: dict[str, Any], group: dict[str, Any], index: int) -> dict[str, Any]:
    """Return the settings of group ``index`` after loading; raise ``ValueError`` if they do not fit
    ``group``."""
    if "coupled_dim" not in saved:
        return _settings_of_adamw(saved, group)
    saved = {
        "coupled": True
    } | saved  # older states have no such key, and all their groups are coupled
    if saved["coupled"] != group["coupled"]:
        there, here = ("coupled", "not coupled") if saved["coupled"] else ("not coupled", "coupled")
        raise ValueError(
            f"param_groups: group {index} of the state is {there} and that of this optimizer is"
            f" {here}; make the groups as they were when the state was saved"
        )
    return saved


def _settings_of_adamw(saved: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of ``group``, with those that AdamW shares taken from ``saved``."""
    if saved.get("amsgrad"):
        raise ValueError(
            "amsgrad: Coupled Adam does not have it; train on with AdamW without it, or start anew"
        )
    if saved["weight_decay"] and not saved.get("decoupled_weight_decay", True):
        raise ValueError(
            "weight_decay: the state is of Adam, whose decay is a part of the gradient; Coupled"
            " Adam has AdamW's; start anew"
        )
    return {**group, **{name: value for name, value in saved.items() if name in _SHARED_WITH_ADAMW}}


def saved_step_and_moment(
    saved: dict[str, Any], parameter: Tensor, group: dict[str, Any]
) -> dict[str, Tensor]:
    """Return copies of the step and the second moment in a parameter's saved state.

    The second moment is averaged if the parameter is coupled and the state has one number per
    element.
    """
    if missing := [name for name in ("step", "exp_avg", "exp_avg_sq") if name not in saved]:
        raise ValueError(
            f"state: has no {', '.join(missing)}; it must be one of CoupledAdam or"
            " torch.optim.AdamW"
        )
    moment = saved["exp_avg_sq"]
    if group["coupled"]:
        moment = _averaged(moment, parameter, group["coupled_dim"] % parameter.ndim)
    else:
        _check_shape(
            moment,
            tuple(parameter.shape),
            f"a parameter of shape {tuple(parameter.shape)}, not coupled,",
        )
        moment = moment.to(parameter.device, parameter.dtype, copy=True)
    step = torch.as_tensor(saved["step"], dtype=torch.float32)
    return {"step": step.to(step_device(parameter, group), copy=True), "exp_avg_sq": moment}


def of_adamw(state: dict[str, Any], parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
    """Return a parameter's state as AdamW has it, with a coupled second moment in each element of
    its column."""
    if not group["coupled"]:
        return state
    dim = group["coupled_dim"] % parameter.ndim
    moment = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    row = part_of_row(parameter, group["scale"] * state["exp_avg_sq"], dim)
    local(moment).copy_(row.unsqueeze(dim).expand_as(local(moment)))
    return {**state, "exp_avg_sq": moment}


def _averaged(moment: Tensor, parameter: Tensor, dim: int) -> Tensor:
    exact = exact_dtype(parameter.dtype)
    if moment.shape == parameter.shape:
        moment = moment.to(exact).mean(dim)
        moment = moment.full_tensor() if isinstance(moment, DTensor) else moment
    expected = (*parameter.shape[:dim], *parameter.shape[dim + 1 :])
    _check_shape(
        moment, expected, f"a parameter of shape {tuple(parameter.shape)} with coupled_dim {dim}"
    )
    return moment.to(parameter.device, exact, copy=True)


def _check_shape(moment: Tensor, expected: tuple[int, ...], whose: str) -> None:
    if moment.shape != expected:
        raise ValueError(
            f"state: exp_avg_sq has shape {tuple(moment.shape)}; {whose} needs {expected}"
        )
