"""A trial of an own optimizer before anything is trained: what it does is judged by numbers."""

import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from coupled_adam_bench.optim.build import Optimizers, build_optimizers
from coupled_adam_bench.study.optimizers import Optimizer
from coupled_adam_bench.study.training import Training

STEPS = 20
_HALF = STEPS // 2
_SHAPES = (24, 8), (16, 8)  # of embedding and head
_STEADY = [1.0] * STEPS
_SLOWER = [1.0] * _HALF + [0.5] * _HALF
"""Learning rates of the steps, as shares of the first."""


def try_optimizer(
    optimizer: Optimizer, training: Training, learning_rate: float = 1e-3
) -> dict[str, Any]:
    """Let an optimizer train two small matrices for twenty steps, and return what it did.

    ``ValueError`` in one sentence if it is no optimizer, fails, changes nothing, makes weights that
    are not finite, does not go on from its saved state with the same bits, or steps on in the same
    way when the learning rate in its groups changes.
    """
    path = optimizer.path or optimizer.kind.path
    # Decay uses the rate, too, and would hide a step that does not.
    trial = _Trial(optimizer.model_copy(update={"weight_decay": 0.0}), training, learning_rate)
    try:
        ended = trial.train(_SLOWER)
        gone_on = trial.train(_SLOWER, stops=True)
        # What keeps its first rate, in its state or anywhere else, sees no difference.
        steady = trial.train(_STEADY)
    except Exception as error:  # the user's own class may raise anything
        said = " ".join(str(error).split())
        raise ValueError(f"path: {path} fails ({type(error).__name__}: {said})") from error

    if not ended.isfinite().all():
        raise ValueError(f"path: {path} makes weights that are not finite in {STEPS} steps")
    if torch.equal(ended, torch.cat(trial.start)):
        raise ValueError(f"path: {path} leaves weights as they are in {STEPS} steps")
    if torch.equal(ended, steady):
        raise ValueError(
            f"path: {path} does the same steps at another learning rate, so that warmup and decay"
            ' would have no effect: let step() read group["lr"] each time'
        )
    if not torch.equal(ended, gone_on):
        raise ValueError(
            f"path: {path}, saved and loaded, does not go on with the same bits: it keeps more than"
            " its state_dict() says, or draws random numbers"
        )
    moved = ended - torch.cat(trial.start)
    return {
        "optimizer": optimizer.names()[0],
        "path": path,
        "steps": STEPS,
        "learning_rate": optimizer.lr_factor * learning_rate,
        "rms_change": moved.square().mean().sqrt().item(),
    }


class _Trial:
    """Two matrices and twenty gradients, which are the same for all trials."""

    def __init__(self, optimizer: Optimizer, training: Training, learning_rate: float) -> None:
        self._optimizer, self._training, self._rate = optimizer, training, learning_rate
        generator = torch.Generator().manual_seed(0)
        self.start, *self._grads = (
            [torch.randn(shape, generator=generator) for shape in _SHAPES] for _ in range(STEPS + 1)
        )

    def train(self, rates: Sequence[float], stops: bool = False) -> Tensor:
        """Return all rows after all steps; ``stops``: saved halfway, and loaded anew."""
        weights, optimizers = self._begin(self.start)
        for index, rate in enumerate(rates):
            if stops and index == _HALF:
                file = io.BytesIO()
                torch.save(optimizers.by_name["embedding"].state_dict(), file)
                file.seek(0)
                weights, optimizers = self._begin(weights)
                state = torch.load(file, weights_only=True)
                optimizers.by_name["embedding"].load_state_dict(state)
            optimizers.set_lr(rate)
            for weight, grad in zip(weights, self._grads[index], strict=True):
                weight.grad = grad.clone()
            optimizers.step()
        return torch.cat([weight.detach() for weight in weights])

    def _begin(self, values: Sequence[Tensor]) -> tuple[list[nn.Parameter], Optimizers]:
        weights = [nn.Parameter(value.detach().clone()) for value in values]
        model = nn.ParameterList(weights)
        built = build_optimizers(model, weights, self._optimizer, self._training, self._rate)
        if not isinstance(built.by_name["embedding"], torch.optim.Optimizer):
            raise TypeError("it is no torch.optim.Optimizer")
        return weights, built
