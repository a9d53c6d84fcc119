"""Builds the optimizers of a cell: one or two for embedding and head, and AdamW, perhaps with Muon, for the rest.

It also says of each optimizer of the embedding how its update follows from gradients (:func:`rule_of`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import torch
from torch import Tensor, nn

from coupled_adam import CoupledAdam
from coupled_adam_bench.optim import custom
from coupled_adam_bench.optim.ember import Ember, column_factor
from coupled_adam_bench.optim.mean_row import add_mu_loss_gradient, subtract_mean_row
from coupled_adam_bench.optim.normalized_sgd import NormalizedSGD, ObliqueSGD
from coupled_adam_bench.study.config import Optimizer, PerMatrixSettings, SingleOptimizer, Training, rate_factor
from coupled_adam_bench.study.config import optimizers as settings


class Optimizers:
    """The optimizers of one model by their names in checkpoints, each built with its peak learning rate.

    ``head`` is the matrix that computes the logits, to which the settings of mu-centering and mu-loss apply.
    """

    def __init__(
        self, optimizers: Mapping[str, torch.optim.Optimizer], head: Tensor, head_settings: settings.HeadSettings
    ) -> None:
        self._optimizers = dict(optimizers)
        self._head, self._head_settings = head, head_settings
        # Peak learning rate of each group; group["lr"] is the scheduled rate, also after a checkpoint is loaded.
        self._peaks = {
            name: [group["lr"] for group in optimizer.param_groups] for name, optimizer in optimizers.items()
        }

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
        """Scale all gradients to a joint 2-norm of at most ``max_norm`` and return the unclipped norm, a scalar."""
        for one in (self.embedding, self.head):
            if isinstance(one, CoupledAdam):  # one pass over its gradients gives the norm and the step's column sums
                return one.clip_grad_norm_(parameters, max_norm)
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def add_mu_loss_gradient(self) -> None:
        """Add the gradient of the mu-loss, if there is one, to that of the head; call it once before clipping."""
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
    model: nn.Module, embeddings: Sequence[Tensor], optimizer: Optimizer, training: Training, peak_lr: float
) -> Optimizers:
    """Return the optimizers of a model; ``embeddings`` are its embedding and, if it is not tied, then its head.

    All other matrices, including the position embedding, have ``training.weight_decay``, and norms have none [C].
    Raises ``ValueError`` for a custom optimizer that cannot be built.
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
        matrices = [parameter for parameter in model.get_submodule("blocks").parameters() if parameter.ndim == 2]
        # Updates have AdamW's RMS, so AdamW's learning rate and decay fit (Moonlight, arXiv 2502.16982, section 2.2).
        kind: dict[str, Any] = {"adjust_lr_fn": "match_rms_adamw"}
        if training.core_optimizer == "muon_exact":
            kind = {"adjust_lr_fn": "original", "ns_coefficients": (2.0, -1.5, 0.5), "ns_steps": 12}
        optimizers["muon"] = torch.optim.Muon(matrices, lr=peak_lr, weight_decay=training.weight_decay, **kind)
        taken |= set(matrices)
    rest = [parameter for parameter in model.parameters() if parameter not in taken]
    groups = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": training.weight_decay},
        {
            "params": [p for p in rest if p.ndim < 2],
            "weight_decay": 0.0,
            "lr": training.norm_lr_factor * peak_lr,
        },
    ]
    betas = (training.beta1, training.beta2)
    optimizers["core"] = torch.optim.AdamW(groups, lr=peak_lr, betas=betas, eps=training.eps, fused=True)
    return optimizers


def build_embedding_optimizer(
    embeddings: Sequence[Tensor], optimizer: SingleOptimizer, training: Training, peak_lr: float
) -> torch.optim.Optimizer:
    """Return the optimizer of one or both of embedding and head, with its peak learning rate."""
    lr, decay = rate_factor(optimizer, embeddings[0].shape[1]) * peak_lr, training.embedding_decay(optimizer)
    match optimizer:
        case settings.AdamWSettings():
            return torch.optim.AdamW(
                embeddings,
                lr=lr,
                betas=training.betas(optimizer),
                eps=training.eps,
                weight_decay=decay,
                amsgrad=optimizer.amsgrad,
                fused=True,
            )
        case settings.CoupledAdamSettings():
            betas, scale = training.betas(optimizer), 2.0**-optimizer.scale_exponent
            return CoupledAdam(embeddings, lr=lr, betas=betas, eps=training.eps, weight_decay=decay, scale=scale)
        case settings.AdamMiniSettings():  # coupling over the columns of a row is Adam-mini's rule
            betas = training.betas(optimizer)
            return CoupledAdam(embeddings, lr=lr, betas=betas, eps=training.eps, weight_decay=decay, coupled_dim=1)
        case settings.EmberSettings():
            return Ember(embeddings, lr=lr, beta2=optimizer.beta2, eps=optimizer.eps, weight_decay=decay)
        case settings.NormalizedSgdSettings():
            momentum = optimizer.momentum
            return NormalizedSGD(embeddings, lr=lr, by=optimizer.by, momentum=momentum, weight_decay=decay)
        case settings.ObliqueSgdSettings():
            return ObliqueSGD(embeddings, lr=lr, momentum=optimizer.momentum, weight_decay=decay)
        case settings.SgdSettings():
            return torch.optim.SGD(embeddings, lr=lr, momentum=optimizer.momentum, weight_decay=decay)
        case settings.CustomSettings():
            return custom.build(optimizer, embeddings, lr, decay)
        case _:
            assert_never(optimizer)


@dataclass(frozen=True)
class Rule:
    """An optimizer as a linear function of gradients: ``m <- keep m + take g``, ``update = -factor m``."""

    keep: float
    take: float
    decoupled_decay: bool
    """Whether weight decay acts directly on the weights (AdamW), instead of through the gradient (SGD)."""
    factor: Callable[[Mapping[str, Any], Mapping[str, Any]], Tensor | float]
    """Function of a parameter's state after the step and its group: a number, or shape D, V1 or VD in float64."""


def second_moment(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    """Return the bias-corrected second moment that Adam divides by, with AMSGrad the largest so far, in float64."""
    moment: Tensor = state["max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"].double()
    if group.get("coupled_dim") == 1:
        moment = moment.unsqueeze(1)
    return moment / (1 - group["betas"][1] ** state["step"].item())  # type: ignore[no-any-return]


def _adam(beta1: float, scale: float) -> Rule:
    def factor(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
        lr = group["lr"] / (1 - beta1 ** state["step"].item())
        denominator = (scale * second_moment(state, group)).sqrt() + group["eps"]
        return lr / denominator  # type: ignore[no-any-return]

    return Rule(beta1, 1 - beta1, True, factor)


def _ember(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    exact = {name: value.double() for name, value in state.items()}
    moment_VD = exact["row_avg_sq"] * column_factor(exact, group["beta2"])
    return group["lr"] / (moment_VD.sqrt() + group["eps"])  # type: ignore[no-any-return]


def rule_of(optimizer: SingleOptimizer, training: Training) -> Rule | None:
    """Return the rule of an optimizer; ``None`` if it is not known to be linear.

    Mu-centering and the mu-loss move the mean by themselves, which is no part of a rule.
    """
    if optimizer.mu_centering or optimizer.mu_loss:
        return None
    match optimizer:
        case settings.AdamWSettings() | settings.AdamMiniSettings():
            return _adam(training.betas(optimizer)[0], 1.0)
        case settings.CoupledAdamSettings():
            return _adam(training.betas(optimizer)[0], 2.0**-optimizer.scale_exponent)
        case settings.EmberSettings():
            return Rule(0.0, 1.0, True, _ember)
        case settings.SgdSettings():
            return Rule(optimizer.momentum, 1.0, False, lambda _, group: float(group["lr"]))
        case settings.CustomSettings() | settings.NormalizedSgdSettings() | settings.ObliqueSgdSettings():
            return None
        case _:
            assert_never(optimizer)
