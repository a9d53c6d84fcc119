"""Which settings and parameters CoupledAdam refuses, with what to write instead."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

# Options of torch.optim.AdamW, and what to write instead.
_ONLY_ADAMW = {
    "amsgrad": "leave it out",
    "foreach": (
        "leave it out: torch chooses it by itself for groups that are not coupled, and `fused` is"
        " for all"
    ),
    "differentiable": "leave it out: no gradient flows through a step",
}


ONLY_COUPLED = ("scale", "coupled_dim")
"""Settings without effect in a group that is not coupled."""


def same(one: Any, other: Any) -> bool:
    """Tell whether two settings, which may be tensors of one element, are equal."""
    return one is other or bool(one == other)


def refuse_without_effect(
    settings: Mapping[str, Any], defaults: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
) -> None:
    """Refuse a setting of the constructor other than its default that no group takes over and none
    has by itself.

    ``lr`` is not refused: trainers give it whatever the groups have, and groups that are added
    later take it over.
    """
    for name, value in settings.items():
        if name == "lr" or name not in defaults or same(value, defaults[name]):
            continue
        takes = [
            group
            for group in groups
            if group.get("coupled", settings["coupled"]) or name not in ONLY_COUPLED
        ]
        if not takes:
            raise ValueError(
                f"{name}: {value} has no effect, since no group is coupled; leave it out"
            )
        own = [group.get(name, value) for group in takes]
        if not any(same(each, value) for each in own):
            listed = ", ".join(dict.fromkeys(str(each) for each in own))
            raise ValueError(
                f"{name}: {value} has no effect, since every group has its own ({listed}); give it"
                " in one of the two places"
            )


def refuse(settings: Mapping[str, Any]) -> None:
    """Refuse the options that only AdamW has."""
    for name, instead in _ONLY_ADAMW.items():
        if settings.get(name):
            raise ValueError(f"{name}: {settings[name]} is not supported by CoupledAdam; {instead}")


def check(group: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for a setting that is out of range, or a parameter that cannot be
    coupled."""
    refuse(group)
    for name, allowed, what in (
        ("lr", group["lr"] >= 0, "at least 0"),
        ("betas", all(0 <= beta < 1 for beta in group["betas"]), "at least 0 and below 1, both"),
        ("eps", group["eps"] >= 0, "at least 0"),
        ("weight_decay", group["weight_decay"] >= 0, "at least 0"),
        ("scale", group["scale"] > 0, "above 0"),
    ):
        if not allowed:
            raise ValueError(f"{name}: {group[name]} is out of range; it must be {what}")
    # A group without coupling is AdamW's, which takes any shape.
    for parameter in group["params"] if group["coupled"] else ():
        shape, dim = tuple(parameter.shape), group["coupled_dim"]
        if parameter.ndim < 2 or not parameter.is_floating_point():
            raise ValueError(
                "params: CoupledAdam takes matrices of real numbers, got a parameter of shape"
                f" {shape} and {parameter.dtype}; put it into a group with coupled=False, as"
                " coupled_param_groups(model) does"
            )
        if not -parameter.ndim <= dim < parameter.ndim:
            raise ValueError(
                f"coupled_dim: {dim} is not a dimension of a parameter of shape {shape}"
            )


def warn_of_other_matrices(groups: Sequence[Mapping[str, Any]]) -> None:
    """Warn of groups that nobody has marked, and whose matrices cannot all have a row for each
    token, since their numbers of rows differ."""
    matrices: list[str] = []
    rows: set[int] = set()
    for group in groups:
        names = group.get("param_names", [""] * len(group["params"]))
        for name, parameter in zip(names, group["params"], strict=True):
            if parameter.numel():
                matrices.append(f"{name} {tuple(parameter.shape)}".strip())
                rows.add(parameter.shape[group["coupled_dim"]])
    if len(rows) < 2:
        return
    shown = ", ".join(matrices[:4]) + (f" and {len(matrices) - 4} more" if matrices[4:] else "")
    warnings.warn(
        f"CoupledAdam couples all {len(matrices)} matrices: {shown}. Their numbers of rows differ,"
        " so some are no embeddings: these lose the second moment of each element, and nothing"
        " says that they train well without. coupled_param_groups(model) couples the embeddings"
        " only; to couple others, mark their group with coupled=True",
        stacklevel=3,
    )
