"""From a cell's settings to its optimizers: one for the embedding, AdamW and perhaps Muon for everything else."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from coupled_adam_bench.config import AdamW, CoupledAdam, Custom, Optimizer, Sgd, Training
from coupled_adam_bench.optim import coupled_adam, custom


class Optimizers:
    """The optimizers of one model, each built with its peak learning rate, by the names that checkpoints know."""

    def __init__(self, parts: Mapping[str, torch.optim.Optimizer]) -> None:
        self._parts = dict(parts)
        # Of the parameter groups, whose own rates are those of the moment, in a checkpoint too.
        self._peaks = {name: [group["lr"] for group in part.param_groups] for name, part in parts.items()}

    @property
    def core(self) -> torch.optim.Optimizer:
        """AdamW, of all but the embedding and the matrices that Muon takes."""
        return self._parts["core"]

    @property
    def embedding(self) -> torch.optim.Optimizer:
        """The embedding's."""
        return self._parts["embedding"]

    def by_name(self) -> dict[str, torch.optim.Optimizer]:
        """Return all under the names that checkpoints know."""
        return dict(self._parts)

    def set_lr(self, factor: float) -> None:
        """Set all learning rates to ``factor`` times their peaks."""
        for name, part in self._parts.items():
            for group, peak in zip(part.param_groups, self._peaks[name], strict=True):
                group["lr"] = factor * peak

    def clip_grad_norm_(self, parameters: Iterable[Tensor], max_norm: float) -> Tensor:
        """Scale all gradients to a joint 2-norm of at most ``max_norm`` and return what it was, a scalar."""
        embedding = self.embedding
        if isinstance(embedding, coupled_adam.CoupledAdam):  # in one pass over its gradients with what its step needs
            return embedding.clip_grad_norm_(parameters, max_norm)
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def step(self) -> None:
        """Update all parameters."""
        for part in self._parts.values():
            part.step()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for part in self._parts.values():
            part.zero_grad(set_to_none=True)


def build_optimizers(
    model: nn.Module, embeddings: Sequence[Tensor], optimizer: Optimizer, training: Training, peak_lr: float
) -> Optimizers:
    """Return the optimizers of a model whose embedding, and head if it is not tied, are ``embeddings``.

    Matrices of the core decay, the position embedding among them, norms do not [C]; embeddings have their own decay.
    ``ValueError`` for an optimizer of the user's that cannot be had.
    """
    parts = _build_core(model, embeddings, training, peak_lr)
    return Optimizers(parts | {"embedding": build_embedding_optimizer(embeddings, optimizer, training, peak_lr)})


def _build_core(
    model: nn.Module, embeddings: Sequence[Tensor], training: Training, peak_lr: float
) -> dict[str, torch.optim.Optimizer]:
    parts: dict[str, torch.optim.Optimizer] = {}
    taken = set(embeddings)  # tensors are hashed by identity
    if training.core_optimizer == "muon":
        matrices = [parameter for parameter in model.get_submodule("blocks").parameters() if parameter.ndim == 2]
        # Steps of AdamW's root mean square, so that its learning rate and decay fit (Moonlight, arXiv 2502.16982, 2.2).
        parts["muon"] = torch.optim.Muon(
            matrices, lr=peak_lr, weight_decay=training.weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        taken |= set(matrices)
    rest = [parameter for parameter in model.parameters() if parameter not in taken]
    groups = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (training.beta1, training.beta2)
    parts["core"] = torch.optim.AdamW(groups, lr=peak_lr, betas=betas, eps=training.eps, fused=True)
    return parts


def build_embedding_optimizer(
    embeddings: Sequence[Tensor], optimizer: Optimizer, training: Training, peak_lr: float
) -> torch.optim.Optimizer:
    """Return the optimizer of the embedding, and of the head if it is not tied, at its peak learning rate."""
    betas, eps = (training.beta1, training.beta2), training.eps
    decay = training.embedding_decay(optimizer)
    match optimizer:
        case AdamW():
            return torch.optim.AdamW(embeddings, lr=peak_lr, betas=betas, eps=eps, weight_decay=decay, fused=True)
        case CoupledAdam():
            scale = 2.0**-optimizer.scale_exponent
            return coupled_adam.CoupledAdam(
                embeddings, lr=peak_lr, betas=betas, eps=eps, weight_decay=decay, scale=scale
            )
        case Sgd():
            lr = optimizer.lr_factor * peak_lr
            return torch.optim.SGD(embeddings, lr=lr, momentum=optimizer.momentum, weight_decay=decay)
        case Custom():
            return custom.build(optimizer, embeddings, optimizer.lr_factor * peak_lr, decay)
