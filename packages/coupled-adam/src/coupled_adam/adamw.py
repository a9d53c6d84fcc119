"""The step of a group that is not coupled: torch's own AdamW."""

from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from coupled_adam.saved_state import step_device

State = MutableMapping[Tensor, dict[str, Any]]


def adamw_step(parameters: Sequence[Tensor], state: State, group: dict[str, Any]) -> None:
    """Update ``parameters``, which all have a gradient, and their ``state`` as
    ``torch.optim.AdamW`` does.

    torch chooses its implementation as usual: ``foreach`` on a GPU, and the fused kernel if the
    group has ``fused``.
    """
    if not parameters:
        return
    grads = [dense(parameter.grad) for parameter in parameters if parameter.grad is not None]
    for parameter in parameters:
        if not state[parameter]:
            state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=step_device(parameter, group)),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }
    beta1, beta2 = group["betas"]
    states = [state[parameter] for parameter in parameters]
    exp_avgs = [one["exp_avg"] for one in states]
    exp_avg_sqs = [one["exp_avg_sq"] for one in states]
    steps = [one["step"] for one in states]
    # torch's public function; the empty list is for the maxima of AMSGrad, which is off.
    adamw(
        list(parameters),
        grads,
        exp_avgs,
        exp_avg_sqs,
        [],
        steps,
        capturable=group["capturable"],
        fused=group["fused"] or None,
        has_complex=any(parameter.is_complex() for parameter in parameters),
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=group["maximize"],
    )


def dense(grad: Tensor) -> Tensor:
    """Return the gradient unchanged; raise ``ValueError`` if it is sparse."""
    if grad.layout != torch.strided:
        raise ValueError(
            f"params: CoupledAdam takes dense gradients, not {grad.layout}; use"
            " Embedding(sparse=False)"
        )
    return grad
