"""Gradients of embedding and head at fixed weights by source, and second moments against
probability, as in Fig. 4.

Shapes: B sequences, T tokens, V = vocab_size, D = d_model.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.cross_entropy import sum_cross_entropy
from coupled_adam_bench.training.moment import fit_line

Array = NDArray[np.float64]
Batch = tuple[Tensor, Tensor]
"""Inputs and targets, each of shape BT."""


@dataclass(frozen=True)
class Sides:
    """The gradients of one batch from the lookup of the input and from the product of the output,
    each of shape VD.

    The gradient of a tied matrix is their sum. Untied, they are the gradients of the embedding and
    of the head.
    """

    input: Tensor
    output: Tensor


def side_gradients(
    model: LanguageModel, batch: Batch, micro_batch_sequences: int, bf16: bool = False
) -> Sides:
    """Return the gradients of the mean cross-entropy of ``batch``; ``bf16`` uses autocast, as
    training does."""
    inputs_BT, targets_BT = batch
    embedding = model.embedding.weight
    head = (
        model.head_weight.detach().requires_grad_()
    )  # separate, so that autograd does not add the two gradients
    sides = Sides(torch.zeros_like(embedding), torch.zeros_like(head))
    for start in range(0, len(inputs_BT), micro_batch_sequences):
        rows = slice(start, start + micro_batch_sequences)
        with torch.autocast(inputs_BT.device.type, torch.bfloat16, enabled=bf16):
            hidden_TD = model.hidden(inputs_BT[rows]).flatten(0, 1)
            loss = (
                sum_cross_entropy(hidden_TD, head, targets_BT[rows].flatten(), model.soft_cap)
                / targets_BT.numel()
            )
        for total, grad in zip(
            (sides.input, sides.output), torch.autograd.grad(loss, (embedding, head)), strict=True
        ):
            total += grad
    return sides


def relative_sum(rows_VD: Tensor) -> float:
    """Return ``‖sum of the rows‖ / sum of ‖row‖`` in float64: 0 if the rows cancel, 1 if they are
    parallel."""
    rows_VD = rows_VD.double()
    return float(rows_VD.sum(0).norm() / rows_VD.norm(dim=1).sum())


def whole_gradients(
    model: LanguageModel, batches: Iterable[Batch], micro_batch_sequences: int, bf16: bool
) -> Iterator[Tensor]:
    """Yield for each batch the whole gradient of the output's matrix before clipping, shape VD."""
    for batch in batches:
        sides = side_gradients(model, batch, micro_batch_sequences, bf16)
        yield sides.input + sides.output if model.tied else sides.output


def mean_square(gradients: Iterable[Tensor]) -> NDArray[np.float64]:
    """Return the mean square over gradients and coordinates, shape V, which is the paper's
    E[v_i]."""
    means_V = [gradient_VD.double().square().mean(1) for gradient_VD in gradients]
    return torch.stack(means_V).mean(0).cpu().numpy()


def against_probability(
    mean_square_V: Array, unigram_counts_V: NDArray[np.int64]
) -> dict[str, Any]:
    """Return the second moment against the unigram probability, as points and a fitted line, for
    tokens that occur.

    The paper derives E[v_i] ~ A p_i and fits A [P]; the intercept is ours [I].
    """
    occurs_V = unigram_counts_V > 0
    probability = unigram_counts_V[occurs_V] / unigram_counts_V.sum()
    line = fit_line(probability, mean_square_V[occurs_V])
    return {
        "probability": probability.tolist(),
        "mean_square": mean_square_V[occurs_V].tolist(),
        **vars(line),
    }
