"""Two Triton kernels of Coupled Adam: one computes the column sums, the other the whole update in
one pass.

This module is imported only if Triton is installed; PyTorch for CUDA includes it.

Shapes: R rows, C columns of a matrix.
"""

from contextlib import AbstractContextManager

import torch
import triton
import triton.language as tl
from torch import Tensor

from coupled_adam.update import Scalar, exact_dtype

_BLOCK_ROWS, _BLOCK_COLUMNS = 16, 128
# Programs that share the rows of a block of columns: enough to occupy all multiprocessors, and few
# enough that their partial sums are small compared with the matrix.
_ROW_PROGRAMS = 128
# A product and a sum are rounded once. Triton 3.9 warns that its default will change.
_FP_FUSION = True


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
    parameter = (
        keep * tl.load(parameter_ptr + offsets, mask=inside, other=0.0).to(dtype)
        - exp_avg * row[None, :]
    )
    tl.store(exp_avg_ptr + offsets, exp_avg.to(exp_avg_ptr.dtype.element_ty), mask=inside)
    tl.store(parameter_ptr + offsets, parameter.to(parameter_ptr.dtype.element_ty), mask=inside)


_TRITON_DTYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


def _on_device_of(tensor: Tensor) -> AbstractContextManager[None]:
    """Return a context that makes the tensor's device current, because Triton launches kernels on
    the current one."""
    return torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]


def column_sums_of_squares(grad_RC: Tensor) -> Tensor:
    """Return the column sums of a contiguous matrix's squares, shape (C,), float32 or better, the
    same every time."""
    n_rows, n_columns = grad_RC.shape
    dtype = exact_dtype(grad_RC.dtype)
    n_blocks = triton.cdiv(n_rows, _BLOCK_ROWS)
    programs = min(n_blocks, _ROW_PROGRAMS)
    partial = torch.empty(programs, n_columns, dtype=dtype, device=grad_RC.device)
    grid = (programs, triton.cdiv(n_columns, _BLOCK_COLUMNS))
    with _on_device_of(grad_RC):
        _sums_kernel[grid](
            grad_RC,
            partial,
            n_rows,
            n_columns,
            n_blocks,
            _BLOCK_ROWS,
            _BLOCK_COLUMNS,
            _TRITON_DTYPES[dtype],
            enable_fp_fusion=_FP_FUSION,
        )
    return partial.sum(0)


def _vector(values: tuple[Scalar, ...], like: Tensor) -> Tensor:
    """Return the scalars as one tensor on the device of ``like``, without synchronizing."""
    scalars = []
    for value in values:
        scalar = value.to(like) if isinstance(value, Tensor) else like.new_full((), value)
        scalars.append(scalar)
    return torch.stack(scalars)


def update(
    parameter_RC: Tensor,
    exp_avg_RC: Tensor,
    grad_RC: Tensor,
    row_C: Tensor,
    beta1: float,
    gain: Scalar,
    keep: Scalar,
) -> None:
    """Apply the update of ``.update`` to contiguous matrices; the row is float32 or better."""
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
            enable_fp_fusion=_FP_FUSION,
        )
