"""From a cell's settings to its two optimizers: one for the embedding, AdamW for everything else."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coupled_adam_bench.config import AdamW, CoupledAdam, Optimizer, Sgd, Training
from coupled_adam_bench.optim import coupled_adam


@dataclass(frozen=True)
class Optimizers:
    """The core's and the embedding's optimizer and their peak learning rates."""

    core: torch.optim.Optimizer
    embedding: torch.optim.Optimizer
    core_peak_lr: float
    embedding_peak_lr: float

    def by_name(self) -> dict[str, torch.optim.Optimizer]:
        """Return both under the names that checkpoints know."""
        return {"core": self.core, "embedding": self.embedding}

    def set_lr(self, factor: float) -> None:
        """Set both learning rates to ``factor`` times their peaks."""
        for optimizer, peak in ((self.core, self.core_peak_lr), (self.embedding, self.embedding_peak_lr)):
            for group in optimizer.param_groups:
                group["lr"] = factor * peak

    def step(self) -> None:
        """Update all parameters."""
        self.core.step()
        self.embedding.step()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        self.core.zero_grad(set_to_none=True)
        self.embedding.zero_grad(set_to_none=True)


def build_optimizers(
    model: nn.Module, embeddings: Sequence[Tensor], optimizer: Optimizer, training: Training, peak_lr: float
) -> Optimizers:
    """Return the optimizers of a model whose embedding, and head if it is not tied, are ``embeddings``.

    Matrices of the core decay, the position embedding among them, norms do not [C]; embeddings have their own decay.
    """
    betas, eps = (training.beta1, training.beta2), training.eps
    core = [parameter for parameter in model.parameters() if all(parameter is not other for other in embeddings)]
    groups = [
        {"params": [p for p in core if p.ndim >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in core if p.ndim < 2], "weight_decay": 0.0},
    ]
    core_optimizer = torch.optim.AdamW(groups, lr=peak_lr, betas=betas, eps=eps, fused=True)
    decay = training.embedding_weight_decay
    embedding_optimizer: torch.optim.Optimizer
    embedding_lr = peak_lr
    match optimizer:
        case AdamW():
            embedding_optimizer = torch.optim.AdamW(
                embeddings, lr=peak_lr, betas=betas, eps=eps, weight_decay=decay, fused=True
            )
        case CoupledAdam():
            embedding_optimizer = coupled_adam.CoupledAdam(
                embeddings, lr=peak_lr, betas=betas, eps=eps, weight_decay=decay, scale=2.0**-optimizer.scale_exponent
            )
        case Sgd():
            embedding_lr = optimizer.lr_factor * peak_lr
            embedding_optimizer = torch.optim.SGD(
                embeddings, lr=embedding_lr, momentum=optimizer.momentum, weight_decay=decay
            )
    return Optimizers(core_optimizer, embedding_optimizer, peak_lr, embedding_lr)
