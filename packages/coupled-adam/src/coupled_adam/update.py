"""The arithmetic of Coupled Adam on one process's tensors: sums of squares, and the update of
weights and moment.

With any settings, a step is ``exp_avg <- beta1 exp_avg + gain grad`` and ``parameter <- keep
parameter - row exp_avg``. The row holds the step sizes; it is constant along the coupled dimension.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from coupled_adam.numbers import Scalar, exact_dtype

# Elements of a block. Squares are added to an accumulator of this size, which stays in the cache:
# on a CPU this takes a twentieth of the time of torch.linalg.vector_norm along the rows
# (benchmarks/optimizer.py).
_BLOCK = 2**18


def sums_of_squares(tensor: Tensor, dim: int, fused: bool | None = None) -> Tensor:
    """Return the sums of squares over ``dim``; the result has no ``dim`` and is float32 or
    better."""
    dtype = exact_dtype(tensor.dtype)
    if _for_triton(fused, dim, tensor):
        from coupled_adam import triton_kernels

        return triton_kernels.column_sums_of_squares(tensor.flatten(1)).view(tensor.shape[1:])
    if tensor.device.type != "cpu" or tensor.numel() == 0:
        norms: Tensor = torch.linalg.vector_norm(tensor, dim=dim, dtype=dtype)
        return norms.square_()
    *whole, last = _blocks(tensor, dim)
    sums = torch.zeros_like(whole[0] if whole else last, dtype=dtype)
    # There are hundreds of blocks, so a needless call for each would take a tenth of the time.
    for block in whole:
        exact = block if block.dtype == dtype else block.to(dtype)
        sums.addcmul_(exact, exact)
    exact = last.to(dtype)
    sums[: len(last)].addcmul_(exact, exact)
    return sums.sum(dim=0)


def _blocks(tensor: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Split a tensor into blocks along ``dim``, which becomes their first dimension."""
    rows = tensor.movedim(dim, 0)
    return torch.split(rows, max(1, _BLOCK * len(rows) // max(1, rows.numel())))


def update(
    parameter: Tensor,
    exp_avg: Tensor,
    grad: Tensor,
    row: Tensor,
    dim: int,
    *,
    beta1: float,
    gain: Scalar,
    keep: Scalar,
    fused: bool | None = None,
) -> None:
    """Update a parameter and its first moment in place; ``row`` has their shape without ``dim``."""
    if _for_triton(fused, dim, parameter, exp_avg, grad):
        from coupled_adam import triton_kernels

        triton_kernels.update(
            parameter.flatten(1),
            exp_avg.flatten(1),
            grad.flatten(1),
            row.flatten(),
            beta1,
            gain,
            keep,
        )
    elif fused and parameter.device.type == "cpu":
        # torch.compile would make another kernel for each new float, but not for a new tensor.
        scalars = (torch.as_tensor(value, dtype=row.dtype) for value in (beta1, gain, keep))
        _compiled()(parameter, exp_avg, grad, row.unsqueeze(dim), *scalars)
    elif parameter.device.type == "cpu" and parameter.dtype != row.dtype:
        # With a row of another dtype, torch would cast the elements one by one.
        for block, moment, grad_block in zip(
            *(_blocks(tensor, dim) for tensor in (parameter, exp_avg, grad)), strict=True
        ):
            exact, exact_moment = block.to(row.dtype), moment.to(row.dtype)
            _one_by_one(exact, exact_moment, grad_block.to(row.dtype), row, beta1, gain, keep)
            block.copy_(exact)
            moment.copy_(exact_moment)
    else:
        _one_by_one(parameter, exp_avg, grad, row.unsqueeze(dim), beta1, gain, keep)


def is_one_kernel(group: dict[str, Any], parameter: Tensor, *others: Tensor) -> bool:
    """Tell whether Triton's kernels do all of a step of a group with these tensors.

    They take their settings as numbers, and compute in float32.
    """
    if group["capturable"] or isinstance(group["lr"], Tensor):
        return False
    return has_kernels(group, parameter, *others)


def has_kernels(group: dict[str, Any], parameter: Tensor, *others: Tensor) -> bool:
    """Tell whether Triton's kernels compute the norm of these tensors in float32."""
    dim = group["coupled_dim"] % parameter.ndim
    if not _for_triton(group["fused"], dim, parameter, *others):
        return False
    return exact_dtype(parameter.dtype) == torch.float32


def _for_triton(fused: bool | None, dim: int, *tensors: Tensor) -> bool:
    if fused is False or dim != 0:
        return False
    return all(_is_for_triton(tensor) for tensor in tensors) and _has_triton()


def _is_for_triton(tensor: Tensor) -> bool:
    # Triton reads memory, which subclasses such as FakeTensor do not have.
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return False
    return tensor.is_cuda and tensor.is_contiguous() and tensor.numel() > 0


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _one_by_one(
    parameter: Tensor,
    exp_avg: Tensor,
    grad: Tensor,
    row: Tensor,
    beta1: float,
    gain: Scalar,
    keep: Scalar,
) -> None:
    """Apply the update with torch's own operations, each a pass over memory; the row is
    broadcast."""
    if isinstance(gain, float) and gain == 1 - beta1:
        exp_avg.lerp_(grad, gain)
    else:
        exp_avg.mul_(beta1).addcmul_(
            grad, torch.as_tensor(gain, dtype=row.dtype, device=row.device)
        )
    if isinstance(keep, Tensor) or keep != 1:
        parameter.mul_(keep)
    parameter.addcmul_(exp_avg, row, value=-1)


def _formula(
    parameter: Tensor,
    exp_avg: Tensor,
    grad: Tensor,
    row: Tensor,
    beta1: Tensor,
    gain: Tensor,
    keep: Tensor,
) -> None:
    # The casts cost nothing in a kernel, and keep the precision where torch.compile falls back to
    # eager mode.
    moment = beta1 * exp_avg.to(row.dtype) + gain * grad.to(row.dtype)
    exp_avg.copy_(moment)
    parameter.copy_(keep * parameter.to(row.dtype) - moment * row)


@cache
def _compiled() -> Callable[..., None]:
    return torch.compile(_formula)
