"""Ember: an optimizer of embeddings without a first moment, whose second moment is an outer product
(Shah 2026).

The paper is arXiv 2607.01455. Shapes: V = vocab_size, D = d_model.
"""

from typing import Any

import torch
from coupled_adam.numbers import exact_dtype
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import ParamsT

from coupled_adam.shards import local, placed_as, sums_over_shards
from coupled_adam_bench.optim.matrices import MatrixOptimizer

# Elements that are worked on at a time: on a CPU they stay in the cache, on a GPU they limit the
# memory of a step.
_CPU_BLOCK, _GPU_BLOCK = 2**18, 2**24


class Ember(MatrixOptimizer):
    r"""Ember for matrices with a row for each token.

    For a matrix :math:`E` with gradient :math:`g_{ij}`, at step t, with all moments 0 at the
    start::

        r_i  <- beta2 r_i + (1 - beta2) mean_j(g_ij^2)      one number per row
        c_j  <- beta2 c_j + (1 - beta2) mean_i(g_ij^2)      one number per column
        v_ij  = r_i c_j / (mean_j(c_j) (1 - beta2^t))
        E_ij <- (1 - lr weight_decay) E_ij - lr g_ij / (sqrt(v_ij) + eps)

    The paper keeps the moment of the whole matrix too. It is the mean of the ``c_j``, since
    averaging is linear, so the state is V + D numbers and the step: ``row_avg_sq`` (shape V1),
    ``column_avg_sq`` (shape D) and ``step``, the moments in float32 or better. Matrices in shards
    of rows (``DTensor``) are updated as if they were whole, with one sum of D numbers a step.

    Args:
        params: parameters or parameter groups, all of them matrices.
        lr: learning rate.
        beta2: decay rate of the moments.
        eps: term that is added to the root of the second moment.
        weight_decay: decoupled weight decay, as in AdamW.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, lr=lr, beta2=beta2, eps=eps, weight_decay=weight_decay)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this class; its moments keep their precision, whatever that of the
        parameters is."""
        super().load_state_dict(state_dict)
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for parameter, index in zip(group["params"], saved["params"], strict=True):
                for name in ("row_avg_sq", "column_avg_sq") if index in state_dict["state"] else ():
                    self.state[parameter][name] = state_dict["state"][index][name].to(
                        parameter.device, copy=True
                    )

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state, dtype = self.state[parameter], exact_dtype(parameter.dtype)
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["row_avg_sq"] = zero_per_row(parameter, dtype)
            state["column_avg_sq"] = torch.zeros(
                parameter.shape[1], dtype=dtype, device=parameter.device
            )
        state["step"] += 1
        # There are two passes over the blocks: the first takes the sums, the second moves the rows.
        placed = placed_as(grad, parameter)
        blocks = _blocks(local(parameter), local(placed), local(state["row_avg_sq"]))
        sums_D = torch.zeros_like(state["column_avg_sq"])
        for _, grad_BD, row_B1 in blocks:
            square_BD = grad_BD.to(dtype).square()
            row_B1.lerp_(square_BD.mean(1, keepdim=True), 1 - group["beta2"])
            sums_D += square_BD.sum(0)
        sums_D = sums_over_shards(sums_D, placed, 0)
        state["column_avg_sq"].lerp_(sums_D / len(parameter), 1 - group["beta2"])

        root_D = column_factor(state, group["beta2"]).sqrt()
        for weight_BD, grad_BD, row_B1 in blocks:
            denominator_BD = (row_B1.sqrt() * root_D).add_(group["eps"])
            if group["weight_decay"]:
                weight_BD.mul_(1 - group["lr"] * group["weight_decay"])
            weight_BD.addcdiv_(grad_BD.to(dtype), denominator_BD, value=-group["lr"])


def column_factor(state: dict[str, Any], beta2: float) -> Tensor:
    """Return ``c_j / (s (1 - beta2^t))``, shape D: times ``row_avg_sq`` it is the corrected second
    moment, shape VD."""
    column_D: Tensor = state["column_avg_sq"]
    # As long as all gradients are 0, so is the mean; the moment is then 0 too, and not 0 / 0.
    mean = column_D.mean().clamp(min=torch.finfo(column_D.dtype).tiny)
    return column_D / (mean * (1 - beta2 ** state["step"].item()))  # type: ignore[no-any-return]


def _blocks(weight_VD: Tensor, grad_VD: Tensor, row_V1: Tensor) -> list[tuple[Tensor, ...]]:
    """Split the three tensors alike into blocks of rows, each of shape BD or B1."""
    block = _CPU_BLOCK if weight_VD.device.type == "cpu" else _GPU_BLOCK
    rows = max(1, block // weight_VD.shape[1])
    return list(
        zip(*(torch.split(tensor, rows) for tensor in (weight_VD, grad_VD, row_V1)), strict=True)
    )


def zero_per_row(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a column of zeros with an entry for each row of a matrix, in shards as the matrix is.

    Raises ``ValueError`` for a matrix whose rows are divided between processes.
    """
    if not isinstance(parameter, DTensor):
        return torch.zeros(len(parameter), 1, dtype=dtype, device=parameter.device)
    if any(place.is_shard(1) for place in parameter.placements):
        raise ValueError(
            f"params: a parameter of shape {tuple(parameter.shape)} is in shards of columns; shard"
            " its rows"
        )
    column = local(parameter).new_zeros(len(local(parameter)), 1, dtype=dtype)
    return DTensor.from_local(
        column,
        parameter.device_mesh,
        parameter.placements,
        shape=torch.Size((len(parameter), 1)),
        stride=(1, 1),
    )
