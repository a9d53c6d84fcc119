"""What multiplies the first moment in a step, as a function of an optimizer's state and group after
it.

Rules of optimizers name these functions
(:class:`~coupled_adam_bench.study.config.optimizers.base.Rule`). All is in float64. Shapes: V =
vocab_size, D = d_model.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def second_moment(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    """Return the bias-corrected second moment that Adam divides by, with AMSGrad the largest so
    far, in float64."""
    moment: Tensor = state["max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"].double()
    if group.get("coupled_dim") == 1:
        moment = moment.unsqueeze(1)
    return moment / (1 - group["betas"][1] ** state["step"].item())  # type: ignore[no-any-return]


def adam(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    """Return the factor of Adam, shape VD, of Coupled Adam, shape D, or of Adam-mini, shape V1."""
    lr = group["lr"] / (1 - group["betas"][0] ** state["step"].item())
    denominator = (group.get("scale", 1.0) * second_moment(state, group)).sqrt() + group["eps"]
    return lr / denominator  # type: ignore[no-any-return]


def rate(state: Mapping[str, Any], group: Mapping[str, Any]) -> float:  # noqa: ARG001 - as of the others
    """Return the learning rate, which is the factor of SGD."""
    return float(group["lr"])
