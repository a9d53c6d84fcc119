"""Coupled Adam: AdamW whose second moment is averaged over the rows of an embedding matrix (paper, Sec. 4)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.optim.optimizer import ParamsT


class CoupledAdam(torch.optim.Optimizer):
    r"""AdamW with one second moment per column instead of one per element.

    For an embedding matrix :math:`E` with ``vocab_size`` rows :math:`i` and gradient rows :math:`g_i`::

        m_i   <- beta1 m_i + (1 - beta1) g_i
        nu    <- beta2 nu  + (1 - beta2) mean_i(g_i^2)                     nu: one number per column
        E_i   <- (1 - lr weight_decay) E_i - lr m_i / (1 - beta1^t) / (sqrt(scale nu / (1 - beta2^t)) + eps)

    The paper averages the moving averages :math:`\hat v_i`; averaging is linear, so averaging the squared gradients
    first is the same and needs a state of ``d_model`` numbers instead of ``vocab_size x d_model``.

    Args:
        params: matrices, or parameter groups of matrices; rows are vocabulary entries.
        lr: learning rate.
        betas: decay of the first and second moment.
        eps: added to the root of the second moment.
        weight_decay: decoupled, as in AdamW.
        scale: factor on the second moment, ``2**-n`` in the paper's Sec. 6.1; 1 is Coupled Adam.

    Raises:
        ValueError: for a setting out of range or a parameter that is not a matrix.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        scale: float = 1.0,
    ) -> None:
        for name, value, allowed in (
            ("lr", lr, lr >= 0),
            ("betas", betas, all(0 <= beta < 1 for beta in betas)),
            ("eps", eps, eps >= 0),
            ("weight_decay", weight_decay, weight_decay >= 0),
            ("scale", scale, scale > 0),
        ):
            if not allowed:
                raise ValueError(f"{name}: {value} is out of range")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "scale": scale}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group; every parameter must be a matrix."""
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            if parameter.ndim != 2:
                raise ValueError(
                    f"params: CoupledAdam takes matrices, got a parameter of shape {tuple(parameter.shape)}"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor | float] | None = None) -> Tensor | float | None:  # type: ignore[override]
        """Update all parameters that have a gradient; return the closure's loss if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = _local(parameter).new_zeros(parameter.shape[1])
        if isinstance(parameter, DTensor) and isinstance(grad, DTensor):
            grad = grad.redistribute(placements=parameter.placements)
        beta1, beta2 = group["betas"]
        state["step"] += 1
        step = state["step"].item()  # a CPU tensor, as in torch.optim.AdamW: no device synchronisation
        exp_avg, exp_avg_sq = _local(state["exp_avg"]), state["exp_avg_sq"]

        exp_avg.lerp_(_local(grad), 1 - beta1)
        exp_avg_sq.lerp_(_column_means_of_squares(grad), 1 - beta2)
        denominator = exp_avg_sq.mul(group["scale"] / (1 - beta2**step)).sqrt_().add_(group["eps"])
        shard = _local(parameter)
        shard.mul_(1 - group["lr"] * group["weight_decay"])
        shard.addcdiv_(exp_avg, _columns_of(parameter, denominator), value=-group["lr"] / (1 - beta1**step))


def _local(tensor: Tensor) -> Tensor:
    """Return this process's shard of a DTensor, and any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _column_means_of_squares(grad: Tensor) -> Tensor:
    """Return the mean over all rows of the squares, shape (d_model,); shards add up in one reduction."""
    sums: Tensor = torch.linalg.vector_norm(_local(grad), dim=0).square_()
    if isinstance(grad, DTensor):
        placements = [Partial() if place.is_shard(0) else _column_placement(place) for place in grad.placements]
        columns = DTensor.from_local(sums, grad.device_mesh, placements, shape=grad.shape[1:], stride=(1,))
        sums = columns.full_tensor()
    return sums.div_(grad.shape[0])


def _columns_of(parameter: Tensor, row: Tensor) -> Tensor:
    """Return the part of a row that belongs to the columns of this process's shard of ``parameter``."""
    if not isinstance(parameter, DTensor):
        return row
    mesh = parameter.device_mesh
    columns = DTensor.from_local(row, mesh, [Replicate()] * mesh.ndim)
    return columns.redistribute(placements=[_column_placement(place) for place in parameter.placements]).to_local()


def _column_placement(place: Placement) -> Placement:
    return Shard(0) if place.is_shard(1) else Replicate()
