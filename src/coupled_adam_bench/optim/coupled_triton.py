"""Coupled Adam's sums and update as Triton kernels: one reads the gradient, the other does all the rest in one pass.

Imported where Triton is installed, which PyTorch for CUDA brings along.

Shapes: R rows, C columns of a matrix; blocks of them have the prefix ``block``.
"""

from contextlib import AbstractContextManager

import torch
import triton
import triton.language as tl
from torch import Tensor

from coupled_adam_bench.optim.coupled_update import Scalar, exact_dtype

_BLOCK_ROWS, _BLOCK_COLUMNS = 16, 128
# Programs that share the rows of a block of columns: enough for all multiprocessors, few enough that their partial sums
# are small against the matrix.
_ROW_PROGRAMS = 128


@triton.jit
def _sums_kernel(  # type: ignore[no-untyped-def]
    grad_ptr,
    partial_ptr,
    n_rows,
    n_columns,
    n_blocks,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    dtype: tl.constexpr,
):
    first = tl.program_id(0)
    columns = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    is_column = columns < n_columns
    sums = tl.zeros((block_rows, block_columns), dtype=dtype)
    for block in range(first, n_blocks, tl.num_programs(0)):
        rows = block * block_rows + tl.arange(0, block_rows)
        offsets = rows.to(tl.int64)[:, None] * n_columns + columns[None, :]
        inside = (rows < n_rows)[:, None] & is_column[None, :]
        grad = tl.load(grad_ptr + offsets, mask=inside, other=0.0).to(dtype)
        sums += grad * grad
    tl.store(partial_ptr + first * n_columns + columns, tl.sum(sums, 0), mask=is_column)


@triton.jit
def _update_kernel(  # type: ignore[no-untyped-def]
    parameter_ptr,
    exp_avg_ptr,
    grad_ptr,
    row_ptr,
    scalars_ptr,
    n_rows,
    n_columns,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    dtype: tl.constexpr,
):
    rows = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    columns = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    is_column = columns < n_columns
    offsets = rows.to(tl.int64)[:, None] * n_columns + columns[None, :]
    inside = (rows < n_rows)[:, None] & is_column[None, :]
    beta1, gain, keep = tl.load(scalars_ptr), tl.load(scalars_ptr + 1), tl.load(scalars_ptr + 2)
    row = tl.load(row_ptr + columns, mask=is_column, other=0.0)
    grad = tl.load(grad_ptr + offsets, mask=inside, other=0.0).to(dtype)
    exp_avg = beta1 * tl.load(exp_avg_ptr + offsets, mask=inside, other=0.0).to(dtype) + gain * grad
    parameter = keep * tl.load(parameter_ptr + offsets, mask=inside, other=0.0).to(dtype) - exp_avg * row[None, :]
    tl.store(exp_avg_ptr + offsets, exp_avg.to(exp_avg_ptr.dtype.element_ty), mask=inside)
    tl.store(parameter_ptr + offsets, parameter.to(parameter_ptr.dtype.element_ty), mask=inside)


_TRITON_DTYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


def _on_device_of(tensor: Tensor) -> AbstractContextManager[None]:
    """Return the context in which Triton, which starts kernels on the current device, starts them where they belong."""
    return torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]


def column_sums_of_squares(grad_RC: Tensor) -> Tensor:
    """Return the sums of a contiguous matrix's squares over its rows, shape (C,), float32 or better, reproducibly."""
    n_rows, n_columns = grad_RC.shape
    dtype = exact_dtype(grad_RC.dtype)
    n_blocks = triton.cdiv(n_rows, _BLOCK_ROWS)
    programs = min(n_blocks, _ROW_PROGRAMS)
    partial = torch.empty(programs, n_columns, dtype=dtype, device=grad_RC.device)
    grid = (programs, triton.cdiv(n_columns, _BLOCK_COLUMNS))
    with _on_device_of(grad_RC):
        _sums_kernel[grid](
            grad_RC, partial, n_rows, n_columns, n_blocks, _BLOCK_ROWS, _BLOCK_COLUMNS, _TRITON_DTYPES[dtype]
        )
    return partial.sum(0)


def _vector(values: tuple[Scalar, ...], like: Tensor) -> Tensor:
    """Return scalars as one tensor on the device of ``like``, without waiting for it."""
    return torch.stack([value.to(like) if isinstance(value, Tensor) else like.new_full((), value) for value in values])


def update(
    parameter_RC: Tensor, exp_avg_RC: Tensor, grad_RC: Tensor, row_C: Tensor, beta1: float, gain: Scalar, keep: Scalar
) -> None:
    """Do the update of contiguous matrices (see :mod:`.coupled_update`); the row is in float32 or better."""
    n_rows, n_columns = parameter_RC.shape
    grid = (triton.cdiv(n_rows, _BLOCK_ROWS), triton.cdiv(n_columns, _BLOCK_COLUMNS))
    scalars = _vector((beta1, gain, keep), row_C)
    with _on_device_of(parameter_RC):
        _update_kernel[grid](
            parameter_RC,
            exp_avg_RC,
            grad_RC,
            row_C,
            scalars,
            n_rows,
            n_columns,
            _BLOCK_ROWS,
            _BLOCK_COLUMNS,
            _TRITON_DTYPES[row_C.dtype],
        )
