"""SGD whose steps or weights have rows or columns of one length, without a second moment.

Shapes: V = vocab_size, D = d_model.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from coupled_adam.shards import local, part_of_row, placed_as, sums_over_shards
from coupled_adam.update import sums_of_squares
from coupled_adam_bench.optim.matrices import MatrixOptimizer

_LEAST = 1e-8
"""The least root mean square, and the least length of a row, by which anything is divided."""


class NormalizedSGD(MatrixOptimizer):
    r"""SGD whose gradient has a root mean square of 1 in each row or column (SCALE, arXiv
    2506.16659).

    With gradient :math:`g_{ij}` and momentum :math:`m_{ij}`, which is 0 at the start::

        m_ij <- momentum m_ij + (1 - momentum) g_ij
        E_ij <- (1 - lr weight_decay) E_ij - lr m_ij / max(rms, 1e-8)

    where ``rms`` is ``sqrt(mean_j(m_ij^2))`` by row, and ``sqrt(mean_i(m_ij^2))`` by column. The
    paper divides by the norm and its code by the root mean square, which differ by a constant
    factor; this is the code's. SCALE has columns of the matrix "inputs x outputs": for the
    embedding these are the D columns here, and for the head the V rows. Only the head has
    momentum there. The state is ``exp_avg``, shape VD, with momentum, and nothing else.

    Args:
        params: parameters or parameter groups, all of them matrices.
        lr: learning rate.
        by: ``row`` or ``column``.
        momentum: decay rate of the moving average of the gradient.
        weight_decay: decoupled weight decay, as in AdamW.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        by: Literal["row", "column"],
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, by=by, momentum=momentum, weight_decay=weight_decay)

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        placed, lr, dim = placed_as(grad, parameter), group["lr"], 1 if group["by"] == "row" else 0
        direction_VD = local(placed)
        if group["momentum"]:
            state = self.state[parameter]
            if not state:
                state["exp_avg"] = torch.zeros_like(parameter)
            direction_VD = local(state["exp_avg"]).lerp_(direction_VD, 1 - group["momentum"])
        sums = sums_over_shards(sums_of_squares(direction_VD, dim), placed, dim)
        root = (sums / parameter.shape[dim]).sqrt_().clamp_(min=_LEAST)
        weight_VD = local(parameter).mul_(1 - lr * group["weight_decay"])
        weight_VD.addcdiv_(
            direction_VD, part_of_row(parameter, root, dim).unsqueeze(dim), value=-lr
        )


class ObliqueSGD(MatrixOptimizer):
    r"""SGD on matrices whose rows have length 1, which is the oblique manifold (NVIDIA's
    Emerging-Optimizers).

    With a row :math:`e` of length 1, its gradient :math:`g` and its momentum :math:`m`, which is 0
    at the start::

        m <- momentum m + g
        e <- (1 - lr weight_decay) e - lr (m - (e . m) e)
        e <- e / |e|

    The rows get length 1 when they are given to the optimizer. The state is ``momentum_buffer``,
    shape VD, with momentum, and nothing else. ``ObliqueSGD`` of Emerging-Optimizers documents this
    rule, but never stores its momentum: it does what this does with momentum 0.

    Args:
        params: parameters or parameter groups, all of them matrices.
        lr: learning rate.
        momentum: factor of the momentum.
        weight_decay: decoupled weight decay, as in AdamW; it makes steps larger relative to the
            rows.
    """

    def __init__(
        self, params: ParamsT, lr: float, momentum: float = 0.9, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay)

    @torch.no_grad()
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group after checking it, and give the rows of its matrices length 1."""
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            _retract(local(parameter))

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        weight_VD, direction_VD = local(parameter), local(placed_as(grad, parameter))
        if group["momentum"]:
            state = self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            direction_VD = (
                local(state["momentum_buffer"]).mul_(group["momentum"]).add_(direction_VD)
            )
        along_V1 = (weight_VD * direction_VD).sum(1, keepdim=True)
        tangent_VD = direction_VD - along_V1 * weight_VD
        weight_VD.mul_(1 - group["lr"] * group["weight_decay"]).sub_(tangent_VD, alpha=group["lr"])
        _retract(weight_VD)


def _retract(weight_VD: Tensor) -> None:
    """Divide each row by its length, in place."""
    weight_VD.div_(torch.linalg.vector_norm(weight_VD, dim=1, keepdim=True).clamp_(min=_LEAST))
