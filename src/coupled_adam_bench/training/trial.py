"""A trial of an own optimizer before anything is trained: what it does is judged by numbers."""

import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from coupled_adam_bench.optim.build import Optimizers, build_optimizers
from coupled_adam_bench.study.optimizers import Optimizer
from coupled_adam_bench.study.training import Training

STEPS = 20
_HALF = STEPS // 2  # stopped and gone on after it, and where the rate changes
_SHAPES = (24, 8), (16, 8)  # of embedding and head
_SLOWER = 0.5


def try_optimizer(
    optimizer: Optimizer, training: Training, learning_rate: float = 1e-3
) -> dict[str, Any]:
    """Let an optimizer train two small matrices for twenty steps, and return what it did.

    ``ValueError`` in one sentence if it is no optimizer, fails, changes nothing, makes weights that
    are not finite, does not go on from its saved state with the same bits, or steps on in the same
    way when the learning rate in its groups changes.
    """
    # Decay uses the rate, too, and would hide a step that does not.
    optimizer = optimizer.model_copy(update={"weight_decay": 0.0})
    path = optimizer.path or optimizer.kind.path
    generator = torch.Generator().manual_seed(0)

    def draw() -> list[Tensor]:
        return [torch.randn(shape, generator=generator) for shape in _SHAPES]

    start, grads = draw(), [draw() for _ in range(STEPS)]

    def begin(values: Sequence[Tensor]) -> tuple[list[nn.Parameter], Optimizers]:
        weights = [nn.Parameter(value.detach().clone()) for value in values]
        model = nn.ParameterList(weights)
        built = build_optimizers(model, weights, optimizer, training, learning_rate)
        if not isinstance(built.by_name["embedding"], torch.optim.Optimizer):
            raise TypeError(f"{path} is no torch.optim.Optimizer")
        return weights, built

    def step(weights: Sequence[Tensor], built: Optimizers, steps: range, factor: float) -> None:
        built.set_lr(factor)
        for index in steps:
            for weight, grad in zip(weights, grads[index], strict=True):
                weight.grad = grad.clone()
            built.step()

    first, second = range(_HALF), range(_HALF, STEPS)
    weights, built = _of(path, "cannot be built", lambda: begin(start))
    _of(path, "fails in a step", lambda: step(weights, built, first, 1.0))
    halfway = [weight.detach().clone() for weight in weights]
    saved = _of(path, "has a state that cannot be saved", lambda: _saved(built))
    _of(path, "fails in a step", lambda: step(weights, built, second, _SLOWER))

    # Once more, from the saved state, as after a stop.
    gone_on, resumed = begin(halfway)
    _of(path, "cannot load its state", lambda: _load(resumed, saved))
    _of(path, "fails in a step", lambda: step(gone_on, resumed, second, _SLOWER))
    # And once more at one rate, without a stop: what keeps its first rate sees no difference.
    steady, unstopped = begin(start)
    step(steady, unstopped, range(STEPS), 1.0)

    if not all(weight.isfinite().all() for weight in weights):
        raise ValueError(
            f"path: {path} at lr_factor {optimizer.lr_factor:g} makes weights that are not finite"
            f" in {STEPS} steps"
        )
    if any(torch.equal(*pair) for pair in zip(weights, start, strict=True)):
        raise ValueError(f"path: {path} leaves weights as they are in {STEPS} steps")
    if any(torch.equal(*pair) for pair in zip(weights, steady, strict=True)):
        raise ValueError(
            f"path: {path} does the same steps at another learning rate, so that warmup and decay"
            ' would have no effect: let step() read group["lr"] each time'
        )
    if not _equal(weights, gone_on):
        raise ValueError(
            f"path: {path}, saved and loaded, does not go on with the same bits: it keeps more than"
            " its state_dict() says, or draws random numbers"
        )
    moved = torch.cat([(a - b).flatten() for a, b in zip(weights, start, strict=True)])
    state = built.by_name["embedding"].state.get(weights[0], {})
    return {
        "optimizer": optimizer.names()[0],
        "path": path,
        "steps": STEPS,
        "learning_rate": optimizer.lr_factor * learning_rate,
        "rms_change": moved.square().mean().sqrt().item(),
        "state": sorted(map(str, state)),
    }


def _of(path: str, fails: str, call: Callable[[], Any]) -> Any:
    """Return what a call of the user's code returns; any error of it names the class."""
    try:
        return call()
    except Exception as error:
        said = " ".join(str(error).split())
        raise ValueError(f"path: {path} {fails} ({type(error).__name__}: {said})") from error


def _saved(built: Optimizers) -> bytes:
    """Return the state as a checkpoint has it."""
    file = io.BytesIO()
    torch.save(built.by_name["embedding"].state_dict(), file)
    torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    return file.getvalue()


def _load(built: Optimizers, saved: bytes) -> None:
    state = torch.load(io.BytesIO(saved), weights_only=True)
    built.by_name["embedding"].load_state_dict(state)


def _equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))
