"""The mean row of a matrix, whole or in shards: mu-centering, and the gradient of the mu-loss
(arXiv 2601.02031).

All rows count, also those that pad the vocabulary: each has a logit in the softmax, which a common
shift of all rows does not change. In shards, a mean takes one sum of D numbers. Shapes: V =
vocab_size, D = d_model.
"""

import torch
from coupled_adam.numbers import exact_dtype
from torch import Tensor

from coupled_adam.shards import local, part_of_row, placed_as, sums_over_shards


def mean_row(matrix_VD: Tensor) -> Tensor:
    """Return the mean of the rows, shape D, in float32 or better; every process has the whole of
    it."""
    rows = local(matrix_VD)
    return sums_over_shards(rows.sum(0, dtype=exact_dtype(rows.dtype)), matrix_VD, 0) / len(
        matrix_VD
    )


@torch.no_grad()
def subtract_mean_row(matrix_VD: Tensor) -> None:
    """Subtract the mean of the rows from each row, in place."""
    local(matrix_VD).sub_(part_of_row(matrix_VD, mean_row(matrix_VD), 0))


@torch.no_grad()
def add_mu_loss_gradient(matrix_VD: Tensor, weight: float) -> None:
    """Add to the gradient of a matrix that of ``weight`` times the squared norm of its mean row.

    The squared norm of the mean m has the gradient ``2 m / V`` in each row. A matrix without a
    gradient is left alone.
    """
    if matrix_VD.grad is not None:
        row = part_of_row(matrix_VD, mean_row(matrix_VD), 0)
        local(placed_as(matrix_VD.grad, matrix_VD)).add_(row, alpha=2 * weight / len(matrix_VD))
