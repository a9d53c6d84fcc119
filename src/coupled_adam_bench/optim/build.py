"""Builds the optimizers of a cell: one or two for embedding and head, and AdamW, perhaps with Muon,
for the rest.
"""

from collections.abc import Iterable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn

from coupled_adam import CoupledAdam
from coupled_adam_bench.optim import custom
from coupled_adam_bench.optim.mean_row import add_mu_loss_gradient, subtract_mean_row
from coupled_adam_bench.study.settings import (
    CustomSettings,
    Optimizer,
    PerMatrixSettings,
    SingleOptimizer,
    Training,
    rate_factor,
)
from coupled_adam_bench.study.settings.optimizers import HeadSettings


class Optimizers:
    """The optimizers of one model by their names in checkpoints, each built with its peak learning
    rate.

    ``head`` is the matrix that computes the logits, to which the settings of mu-centering and
    mu-loss apply.
    """

    def __init__(
        self,
        optimizers: Mapping[str, torch.optim.Optimizer],
        head: Tensor,
        head_settings: HeadSettings,
    ) -> None:
        self._optimizers = dict(optimizers)
        self._head, self._head_settings = head, head_settings
        # Peak learning rate of each group; group["lr"] is the scheduled rate, also after a
        # checkpoint is loaded.
        self._peaks: dict[str, list[float]] = {}
        for name, optimizer in optimizers.items():
            self._peaks[name] = [group["lr"] for group in optimizer.param_groups]

    @property
    def core(self) -> torch.optim.Optimizer:
        """The AdamW that updates everything but the embedding and Muon's matrices."""
        return self._optimizers["core"]

    @property
    def embedding(self) -> torch.optim.Optimizer:
        """The optimizer of the embedding."""
        return self._optimizers["embedding"]

    @property
    def head(self) -> torch.optim.Optimizer:
        """The optimizer of the head, which may be that of the embedding."""
        return self._optimizers.get("head", self.embedding)

    @property
    def head_peak(self) -> float:
        """The peak learning rate of the head, which a tied embedding is."""
        return float(self._peaks.get("head", self._peaks["embedding"])[-1])

    def by_name(self) -> dict[str, torch.optim.Optimizer]:
        """Return all optimizers by their names in checkpoints."""
        return dict(self._optimizers)

    def set_lr(self, factor: float) -> None:
        """Set all learning rates to ``factor`` times their peaks."""
        for name, optimizer in self._optimizers.items():
            for group, peak in zip(optimizer.param_groups, self._peaks[name], strict=True):
                group["lr"] = factor * peak

    def clip_grad_norm_(self, parameters: Iterable[Tensor], max_norm: float) -> Tensor:
        """Scale all gradients to a joint 2-norm of at most ``max_norm`` and return the unclipped
        norm, a scalar."""
        for one in (self.embedding, self.head):
            if isinstance(one, CoupledAdam):
                # One pass over its gradients gives the norm and the step's column sums.
                return one.clip_grad_norm_(parameters, max_norm)
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def add_mu_loss_gradient(self) -> None:
        """Add the gradient of the mu-loss, if there is one, to that of the head; call it once
        before clipping."""
        if self._head_settings.mu_loss:
            add_mu_loss_gradient(self._head, self._head_settings.mu_loss)

    def step(self) -> None:
        """Update all parameters, and then center the head if that is set."""
        for optimizer in self._optimizers.values():
            optimizer.step()
        if self._head_settings.mu_centering:
            subtract_mean_row(self._head)

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for optimizer in self._optimizers.values():
            optimizer.zero_grad(set_to_none=True)


def build_optimizers(
    model: nn.Module,
    embeddings: Sequence[Tensor],
    optimizer: Optimizer,
    training: Training,
    peak_lr: float,
) -> Optimizers:
    """Return the optimizers of a model; ``embeddings`` are its embedding and, if it is not tied,
    then its head.

    All other matrices, including the position embedding, have ``training.weight_decay``, and norms
    have none [C]. Raises ``ValueError`` for a custom optimizer that cannot be built.
    """
    core = _build_core(model, embeddings, training, peak_lr)
    if isinstance(optimizer, PerMatrixSettings):
        matrices = {"embedding": embeddings[:1], "head": embeddings[1:]}
        each = {name: (matrices[name], entry) for name, entry in optimizer.entries.items()}
    else:
        each = {"embedding": (embeddings, optimizer)}
    built = {name: build_embedding_optimizer(*of, training, peak_lr) for name, of in each.items()}
    return Optimizers(core | built, embeddings[-1], optimizer.head)


def _build_core(
    model: nn.Module, embeddings: Sequence[Tensor], training: Training, peak_lr: float
) -> dict[str, torch.optim.Optimizer]:
    optimizers: dict[str, torch.optim.Optimizer] = {}
    taken = set(embeddings)  # tensors are hashed by identity
    if training.core_optimizer != "adamw":
        matrices = [
            parameter
            for parameter in model.get_submodule("blocks").parameters()
            if parameter.ndim == 2
        ]
        # Updates have AdamW's RMS, so AdamW's learning rate and decay fit (Moonlight, arXiv
        # 2502.16982, section 2.2).
        kind: dict[str, Any] = {"adjust_lr_fn": "match_rms_adamw"}
        if training.core_optimizer == "muon_exact":
            kind = {"adjust_lr_fn": "original", "ns_coefficients": (2.0, -1.5, 0.5), "ns_steps": 12}
        optimizers["muon"] = torch.optim.Muon(
            matrices, lr=peak_lr, weight_decay=training.weight_decay, **kind
        )
        taken |= set(matrices)
    rest = [parameter for parameter in model.parameters() if parameter not in taken]
    matrices = [parameter for parameter in rest if parameter.ndim >= 2]
    vectors = [parameter for parameter in rest if parameter.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": training.weight_decay},
        {"params": vectors, "weight_decay": 0.0, "lr": training.norm_lr_factor * peak_lr},
    ]
    betas = (training.beta1, training.beta2)
    optimizers["core"] = torch.optim.AdamW(
        groups, lr=peak_lr, betas=betas, eps=training.eps, fused=True
    )
    return optimizers


def build_embedding_optimizer(
    embeddings: Sequence[Tensor], optimizer: SingleOptimizer, training: Training, peak_lr: float
) -> torch.optim.Optimizer:
    """Return the optimizer of one or both of embedding and head, with its peak learning rate."""
    lr = rate_factor(optimizer, embeddings[0].shape[1]) * peak_lr
    decay = training.embedding_decay(optimizer)
    if isinstance(optimizer, CustomSettings):
        return custom.build(optimizer, embeddings, lr, decay)
    kind: type[torch.optim.Optimizer] = resolve_name(optimizer.implementation)
    keywords = optimizer.keywords(training.betas(optimizer), training.eps)
    return kind(embeddings, lr=lr, weight_decay=decay, **keywords)  # type: ignore[call-arg]
