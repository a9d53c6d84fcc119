"""A trial of custom optimizers on two small matrices: each must step, and resume with the same
bits."""

import json
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from coupled_adam_bench.optim.build import build_embedding_optimizer, own_core
from coupled_adam_bench.study.plan.dotted import failure
from coupled_adam_bench.study.settings import CustomSettings, Own, Study, Training
from coupled_adam_bench.training.checks import check_optimizers, custom_optimizers
from coupled_adam_bench.training.optimizer_state import export_state, import_state

_SHAPES = {"embedding": (24, 8), "head": (16, 8)}
_STEPS = 20  # steps before and after the stop; some optimizers change nothing in their first ten
_CORE = "training.core_optimizer"
_SLOWER = 0.5
"""Share of the learning rate at which the steps after the stop are done once more."""


def try_optimizers(study: Study) -> None:
    """Try all custom optimizers of a study; raise a ``ValueError`` that lists the problems by
    field."""
    check_optimizers(study)
    problems = []
    tried = list(custom_optimizers(study))
    core = study.training.core_optimizer
    if isinstance(core, Own):
        tried.append((_CORE, own_core(core, study.training)))
    for field, optimizer in tried:
        try:
            try_optimizer(optimizer, study.training, study.models[0].learning_rate)
        except ValueError as error:
            problems.append(_named(field, str(error)))
    if problems:
        raise ValueError("\n".join(problems))


def _named(field: str, said: str) -> str:
    """Return an error with the field that a study has for it: an own core optimizer has the weight
    decay of ``training`` and no factor of the learning rate."""
    if field == _CORE and said.startswith("weight_decay:"):
        return f"training.{said}, or let the class take it"
    if field == _CORE and said.startswith("lr_factor:"):
        makes = said.removeprefix("lr_factor: 1 ")
        return f"{_CORE}.path: the class {makes} at the learning rate of the models"
    return f"{field}.{said}"


def try_optimizer(optimizer: CustomSettings, training: Training, peak_lr: float) -> None:
    """Let an optimizer do some steps, once without a stop and once with its state saved and loaded
    halfway.

    Raises ``ValueError`` if the optimizer cannot be built, needs more than gradients, changes no
    weight, makes weights that are not finite, has a state that cannot be saved, does not end with
    the same bits both times, or does so at another learning rate, too.
    """
    generator = torch.Generator().manual_seed(0)

    def draw() -> list[Tensor]:
        return [torch.randn(shape, generator=generator) for shape in _SHAPES.values()]

    start = draw()
    grads = [draw() for _ in range(2 * _STEPS)]
    weights, undisturbed = _begin(start, optimizer, training, peak_lr)
    _step(optimizer, undisturbed, weights, grads[:_STEPS])
    if any(torch.equal(*pair) for pair in zip(weights, start, strict=True)):
        raise ValueError(f"path: {optimizer.path} leaves weights as they are in {_STEPS} steps")
    resumed_weights, resumed = _continued(optimizer, training, peak_lr, weights, undisturbed)
    slowed_weights, slowed = _continued(optimizer, training, peak_lr, weights, undisturbed)
    for group in slowed.param_groups:
        group["lr"] *= _SLOWER
    for one, its_weights in (
        (undisturbed, weights),
        (resumed, resumed_weights),
        (slowed, slowed_weights),
    ):
        _step(optimizer, one, its_weights, grads[_STEPS:])
    if not all(torch.equal(*pair) for pair in zip(weights, resumed_weights, strict=True)):
        raise ValueError(
            f"path: {optimizer.path}, stopped, saved and loaded, does not go on with the same bits:"
            " it keeps more than its state_dict() says, or draws random numbers; jobs that are"
            " stopped would give other results"
        )
    if any(torch.equal(*pair) for pair in zip(weights, slowed_weights, strict=True)):
        raise ValueError(
            f"path: {optimizer.path} does the same steps with {_SLOWER:g} of the learning rate, so"
            " warmup and decay would have no effect: let its step() read the rate from"
            ' param_groups, group["lr"], in which the schedule sets it'
        )


def _continued(
    optimizer: CustomSettings,
    training: Training,
    peak_lr: float,
    weights: Sequence[Tensor],
    other: torch.optim.Optimizer,
) -> tuple[list[Tensor], torch.optim.Optimizer]:
    """Return copies of the weights of another optimizer, and one of theirs that goes on from its
    saved state; ``ValueError`` if that cannot be saved or loaded."""
    copied, built = _begin(weights, optimizer, training, peak_lr)
    try:
        tensors, rest = export_state(other, dict(zip(weights, _SHAPES, strict=True)), "embedding")
        copies = {
            name: tensor.clone(memory_format=torch.contiguous_format)
            for name, tensor in tensors.items()
        }
        names = dict(zip(copied, _SHAPES, strict=True))
        import_state(built, names, "embedding", copies, json.loads(json.dumps(rest)))
    except Exception as error:  # the class's own load_state_dict may raise anything
        raise ValueError(
            f"path: the state of {optimizer.path} cannot be saved and loaded {failure(error)}"
        ) from error
    return copied, built


def _begin(
    values: Sequence[Tensor], optimizer: CustomSettings, training: Training, peak_lr: float
) -> tuple[list[Tensor], torch.optim.Optimizer]:
    weights: list[Tensor] = [nn.Parameter(value.detach().clone()) for value in values]
    return weights, build_embedding_optimizer(weights, optimizer, training, peak_lr)


def _step(
    optimizer: CustomSettings,
    built: torch.optim.Optimizer,
    weights: Sequence[Tensor],
    grads: Sequence[Sequence[Tensor]],
) -> None:
    for step_grads in grads:
        for weight, grad in zip(weights, step_grads, strict=True):
            weight.grad = grad.clone()
        try:
            built.step()
        except Exception as error:  # the class's own step may raise anything
            raise ValueError(
                f"path: {optimizer.path}: step() fails {failure(error)};"
                " optimizers that need a closure, second derivatives or other than dense gradients"
                " are not supported"
            ) from error
    if not all(weight.isfinite().all() for weight in weights):
        raise ValueError(
            f"lr_factor: {optimizer.lr_factor:g} makes weights that are not finite in {_STEPS}"
            " steps"
        )
