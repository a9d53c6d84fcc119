"""Loss and gradient of a chunk's logits in one Triton kernel, which reads and writes each row once.

A program does one row: a pass for the maximum and the sum, and a second one that writes the
gradient over the logits. Between them the row stays in the GPU's cache of the second level (a row
of 50,304 in bfloat16 has 100 KB), if few rows are under way at a time. It has never run on a GPU:
Triton's interpreter tests it, and it compiles for sm_80, sm_90 and sm_100. So nothing uses it by
default: ``model.chunk_loss = by_kernel`` does.

This module is imported only if Triton is installed. Shapes: C tokens of a chunk, V = vocab_size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# A program of 32 warps leaves room for one more on a multiprocessor: about 26 MB of rows at a time,
# of the 50 MB of cache that Hopper has.
BLOCK, N_WARPS = 8192, 32
_SMALL_LOSS = tl.constexpr(0.01)
_TRITON_DTYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


@triton.jit  # type: ignore[untyped-decorator]
def loss_kernel(  # type: ignore[no-untyped-def]
    logits_ptr, targets_ptr, loss_ptr, n_columns, block: tl.constexpr, dtype: tl.constexpr
):
    """Write gradients over the logits of a row, and its loss."""
    row = tl.program_id(0)
    row_ptr = logits_ptr + row.to(tl.int64) * n_columns
    target = tl.load(targets_ptr + row)
    target_logit = tl.load(row_ptr + target).to(dtype)

    # The sum is of exponentials below the maximum so far, and shrinks when that grows.
    top, total = tl.full((), float("-inf"), dtype), tl.zeros((), dtype)
    for start in range(0, n_columns, block):
        columns = start + tl.arange(0, block)
        x = tl.load(
            row_ptr + columns,
            mask=columns < n_columns,
            other=float("-inf"),
            eviction_policy="evict_last",
        ).to(dtype)
        higher = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher), 0)
        top = higher
    loss = tl.log(total) - (target_logit - top)
    tl.store(loss_ptr + row, loss)

    # softmax - 1 is computed from the loss, since bfloat16 would round a softmax near 1 to 1; and a
    # small one from its series, since exp would round it.
    series = -loss * (1 - loss / 2 * (1 - loss / 3 * (1 - loss / 4)))
    target_grad = tl.where(loss < _SMALL_LOSS, series, tl.exp(-loss) - 1)
    scale = 1 / total
    # All threads have read the logit of the target before one writes over it.
    tl.debug_barrier()
    for start in range(0, n_columns, block):
        columns = start + tl.arange(0, block)
        x = tl.load(
            row_ptr + columns,
            mask=columns < n_columns,
            other=0.0,
            eviction_policy="evict_first",
        ).to(dtype)
        grad = tl.where(columns == target, target_grad, scale * tl.exp(x - top))
        tl.store(row_ptr + columns, grad.to(logits_ptr.dtype.element_ty), mask=columns < n_columns)


def by_kernel(logits_CV: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
    """Write the gradients of contiguous logits over them, and return them and the losses, shape C.

    The losses are at least float32.
    """
    n_rows, n_columns = logits_CV.shape
    exact = torch.promote_types(logits_CV.dtype, torch.float32)
    losses_C = torch.empty(n_rows, dtype=exact, device=logits_CV.device)
    with torch.cuda.device_of(logits_CV):  # type: ignore[no-untyped-call]
        loss_kernel[(n_rows,)](
            logits_CV,
            targets_C,
            losses_C,
            n_columns,
            min(BLOCK, triton.next_power_of_2(n_columns)),
            _TRITON_DTYPES[exact],
            num_warps=N_WARPS,
        )
    return logits_CV, losses_C
