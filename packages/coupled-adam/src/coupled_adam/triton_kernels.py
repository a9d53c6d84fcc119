"""Triton kernels of Coupled Adam. One computes the column sums of a gradient's squares, one makes a
norm and a clipping factor of them, and one does the whole update in one pass.

A step with clipping is three launches: the host needs longer for a launch than the GPU for a few
numbers, so nothing between the kernels is left to torch's operations.

This module is imported only if Triton is installed; PyTorch for CUDA includes it.

Shapes: R rows, C columns of a matrix.
"""

from contextlib import AbstractContextManager

import torch
import triton
import triton.language as tl
from torch import Tensor

from coupled_adam.numbers import Scalar, exact_dtype

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
def _norm_kernel(  # type: ignore[no-untyped-def]
    partial_ptr,
    sums_ptr,
    others_ptr,
    before_ptr,
    found_ptr,
    max_norm,
    n_partials,
    n_columns,
    block_partials: tl.constexpr,
    block_columns: tl.constexpr,
    dtype: tl.constexpr,
):
    partials = tl.arange(0, block_partials)
    total = tl.zeros((block_columns,), dtype=dtype)
    for start in range(0, n_columns, block_columns):
        columns = start + tl.arange(0, block_columns)
        is_column = columns < n_columns
        inside = (partials < n_partials)[:, None] & is_column[None, :]
        offsets = partials[:, None] * n_columns + columns[None, :]
        sums = tl.sum(tl.load(partial_ptr + offsets, mask=inside, other=0.0), 0)
        tl.store(sums_ptr + columns, sums, mask=is_column)
        total += sums
    square = tl.sum(total, 0)
    if before_ptr is not None:
        square += tl.load(before_ptr + 2)
    norm_square = square
    if others_ptr is not None:
        others = tl.load(others_ptr).to(dtype)
        norm_square += others * others
    norm = tl.sqrt_rn(norm_square)
    # torch's clip_grad_norm_ adds the same 1e-6. A norm of NaN stays NaN.
    factor = tl.div_rn(max_norm, norm + 1e-6)
    tl.store(found_ptr, tl.where(factor > 1.0, 1.0, factor))
    tl.store(found_ptr + 1, norm)
    tl.store(found_ptr + 2, square)


@triton.jit
def _move(  # type: ignore[no-untyped-def]
    parameter_ptr,
    exp_avg_ptr,
    grad_ptr,
    row,
    beta1,
    gain,
    keep,
    rows,
    columns,
    n_rows,
    n_columns,
    dtype: tl.constexpr,
):
    offsets = rows.to(tl.int64)[:, None] * n_columns + columns[None, :]
    inside = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    grad = tl.load(grad_ptr + offsets, mask=inside, other=0.0).to(dtype)
    exp_avg = beta1 * tl.load(exp_avg_ptr + offsets, mask=inside, other=0.0).to(dtype) + gain * grad
    parameter = (
        keep * tl.load(parameter_ptr + offsets, mask=inside, other=0.0).to(dtype)
        - exp_avg * row[None, :]
    )
    tl.store(exp_avg_ptr + offsets, exp_avg.to(exp_avg_ptr.dtype.element_ty), mask=inside)
    tl.store(parameter_ptr + offsets, parameter.to(parameter_ptr.dtype.element_ty), mask=inside)


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
    beta1, gain, keep = tl.load(scalars_ptr), tl.load(scalars_ptr + 1), tl.load(scalars_ptr + 2)
    row = tl.load(row_ptr + columns, mask=columns < n_columns, other=0.0)
    _move(
        parameter_ptr,
        exp_avg_ptr,
        grad_ptr,
        row,
        beta1,
        gain,
        keep,
        rows,
        columns,
        n_rows,
        n_columns,
        dtype,
    )


@triton.jit
def _step_kernel(  # type: ignore[no-untyped-def]
    parameter_ptr,
    exp_avg_ptr,
    grad_ptr,
    sums_ptr,
    exp_avg_sq_ptr,
    new_exp_avg_sq_ptr,
    factor_ptr,
    beta1,
    gain,
    keep,
    share,
    correction,
    rate,
    eps,
    n_rows,
    n_columns,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    dtype: tl.constexpr,
):
    rows = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    columns = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    is_column = columns < n_columns
    mean = tl.div_rn(tl.load(sums_ptr + columns, mask=is_column, other=0.0), n_rows.to(dtype))
    if factor_ptr is not None:
        factor = tl.load(factor_ptr)
        mean *= factor * factor
        gain *= factor
    old = tl.load(exp_avg_sq_ptr + columns, mask=is_column, other=0.0)
    exp_avg_sq = old + share * (mean - old)
    # Each program makes the row of its columns anew, from the old moment. So the new one has a
    # place of its own, which one program writes.
    if tl.program_id(0) == 0:
        tl.store(new_exp_avg_sq_ptr + columns, exp_avg_sq, mask=is_column)
    row = tl.div_rn(rate, tl.sqrt_rn(exp_avg_sq * correction) + eps)
    _move(
        parameter_ptr,
        exp_avg_ptr,
        grad_ptr,
        row,
        beta1,
        gain,
        keep,
        rows,
        columns,
        n_rows,
        n_columns,
        dtype,
    )


_TRITON_DTYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


def _on_device_of(tensor: Tensor) -> AbstractContextManager[None]:
    """Return a context that makes the tensor's device current, because Triton launches kernels on
    the current one."""
    return torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]


def partial_sums_of_squares(grad_RC: Tensor) -> Tensor:
    """Return sums of a contiguous matrix's squares over some rows each, shape (programs, C),
    float32 or better."""
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
    return partial


def column_sums_of_squares(grad_RC: Tensor) -> Tensor:
    """Return the column sums of a contiguous matrix's squares, shape (C,), float32 or better, the
    same every time."""
    return partial_sums_of_squares(grad_RC).sum(0)


def norm_of(
    grad_RC: Tensor, max_norm: float, others: Tensor | None, before: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the column sums of a matrix's squares, shape (C,), and three numbers in float32: the
    factor that clips, the norm, and the sum of squares.

    The norm is joint with that of ``others``, a number, and with the matrices ``before``, given by
    what this function returned for the last of them.
    """
    partial = partial_sums_of_squares(grad_RC)
    n_columns = partial.shape[1]
    sums, found = partial.new_empty(n_columns), partial.new_empty(3)
    with _on_device_of(grad_RC):
        _norm_kernel[(1,)](
            partial,
            sums,
            others,
            before,
            found,
            float(max_norm),
            len(partial),
            n_columns,
            _ROW_PROGRAMS,
            _BLOCK_COLUMNS,
            _TRITON_DTYPES[partial.dtype],
            enable_fp_fusion=_FP_FUSION,
            num_warps=8,
        )
    return sums, found


def step(
    parameter_RC: Tensor,
    exp_avg_RC: Tensor,
    grad_RC: Tensor,
    sums_C: Tensor,
    exp_avg_sq_C: Tensor,
    factor: Tensor | None,
    beta1: float,
    gain: float,
    keep: float,
    share: float,
    correction: float,
    rate: float,
    eps: float,
) -> Tensor:
    """Apply a step to contiguous matrices in one launch, and return the new second moment, shape
    (C,), float32.

    ``sums_C`` are the column sums of the gradient's squares, and ``factor`` clips it. The second
    moment takes the ``share`` of the new mean, and is multiplied by ``correction`` below the root.
    """
    n_rows, n_columns = parameter_RC.shape
    grid = (triton.cdiv(n_rows, _BLOCK_ROWS), triton.cdiv(n_columns, _BLOCK_COLUMNS))
    new_exp_avg_sq_C = torch.empty_like(exp_avg_sq_C)
    with _on_device_of(parameter_RC):
        _step_kernel[grid](
            parameter_RC,
            exp_avg_RC,
            grad_RC,
            sums_C,
            exp_avg_sq_C,
            new_exp_avg_sq_C,
            factor,
            float(beta1),
            float(gain),
            float(keep),
            float(share),
            float(correction),
            float(rate),
            float(eps),
            n_rows,
            n_columns,
            _BLOCK_ROWS,
            _BLOCK_COLUMNS,
            _TRITON_DTYPES[sums_C.dtype],
            enable_fp_fusion=_FP_FUSION,
        )
    return new_exp_avg_sq_C


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
