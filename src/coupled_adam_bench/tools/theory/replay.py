"""A replay of a cell's training, step for step the same, which splits the drift of the mean
embedding by its origin.

It is split exactly into contributions of input, output and weight decay. For known denominators, an
optimizer's update is linear in all gradients so far. The update of the mean row is thus the sum of
the contributions of the gradient from the input and from the output, each with its own first
moment.

Shapes: V = vocab_size, D = d_model.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn

from coupled_adam_bench.machine.progress import Progress
from coupled_adam_bench.optim.build import rule_of
from coupled_adam_bench.store.runs import run_history
from coupled_adam_bench.study.catalog.names import EMBEDDING, HEAD
from coupled_adam_bench.study.config.optimizers.base import Rule
from coupled_adam_bench.tools.theory.gradients import relative_sum
from coupled_adam_bench.training.trainer import Trainer

PARTS = ("input", "output", "decay")
# If this fraction of the displacement or more is unexplained by the parts, their shares would only
# be noise.
_ROUNDING = 0.1
_CLIP_EPS = 1e-6  # torch.nn.utils.clip_grad_norm_ adds it to the norm


class Drift:
    """The drift of the mean row of one matrix; call :meth:`add` after every step and :meth:`record`
    after some."""

    def __init__(self, weight: Tensor, rule: Rule | None) -> None:
        self.weight, self.rule = weight, rule
        self.mean_D = self.start_D = weight.detach().double().mean(0)
        self.moments: dict[str, Tensor] = {}
        """First moment of the gradients from ``input`` and from ``output``, each of shape VD."""
        self.decay_moment_D = torch.zeros_like(self.mean_D)
        self.parts: dict[str, Tensor] = {part: torch.zeros_like(self.mean_D) for part in PARTS}
        """Displacement of the mean by each part since the start, shape D."""
        self.records: dict[str, list[float]] = {
            name: []
            for name in ("step", "mean_norm", "mean_norm_ratio", "displacement", "update_sum")
        }
        if rule is not None:
            self.records |= {name: [] for name in (*PARTS, "residual")}

    def add(
        self, grads: Mapping[str, Tensor], state: Mapping[str, Any], group: Mapping[str, Any]
    ) -> None:
        """Add one step, given the clipped gradient from each side and the optimizer's state and
        group after it."""
        if self.rule is not None:
            rule = self.rule
            factor = resolve_name(rule.factor)(state, group)
            for side, grad_VD in grads.items():
                moment_VD = self.moments.setdefault(
                    side, torch.zeros_like(grad_VD, dtype=torch.float64)
                )
                moment_VD.mul_(rule.keep).add_(grad_VD, alpha=rule.take)
                self.parts[side] -= (moment_VD * factor).mean(0)
            decay_D = (
                group["weight_decay"] * self.mean_D
            )  # self.mean_D is still the mean before the step
            if not rule.decoupled_decay:
                decay_D = self.decay_moment_D.mul_(rule.keep).add_(decay_D)
            self.parts["decay"] -= group["lr"] * decay_D
        self.mean_D = self.weight.detach().double().mean(0)

    def record(self, step: int, before_VD: Tensor) -> None:
        """Record the mean after ``step`` steps; ``before_VD`` are the weights before the last of
        them."""
        weight_VD = self.weight.detach().double()
        displacement_D = self.mean_D - self.start_D
        now = {
            "step": step,
            "mean_norm": self.mean_D.norm().item(),
            "mean_norm_ratio": (self.mean_D.norm() / weight_VD.norm(dim=1).mean()).item(),
            "displacement": displacement_D.norm().item(),
            "update_sum": relative_sum(weight_VD - before_VD),
        }
        if self.rule is not None:
            now |= {part: moved_D.norm().item() for part, moved_D in self.parts.items()}
            now["residual"] = (displacement_D - self._explained()).norm().item()
        for name, value in now.items():
            self.records[name].append(value)

    def _explained(self) -> Tensor:
        return torch.stack(list(self.parts.values())).sum(0)

    def shares(self) -> dict[str, float | None]:
        """Return the share of each part in the displacement so far as ``<part>_share``; the shares
        add up to 1.

        A part's share is its projection on the displacement that the parts explain. All shares are
        None without a rule, or if the mean moved no further than the rounding of the weights.
        """
        explained_D = self._explained()
        displacement_D = self.mean_D - self.start_D
        residual = (displacement_D - explained_D).norm()
        if self.rule is None or not residual < _ROUNDING * displacement_D.norm():
            return {f"{part}_share": None for part in PARTS}
        square = explained_D @ explained_D
        return {
            f"{part}_share": (moved_D @ explained_D / square).item()
            for part, moved_D in self.parts.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return records and shares; parts and residual are None for an optimizer without a
        rule."""
        undefined = dict.fromkeys((*PARTS, "residual")) if self.rule is None else {}
        return {**self.records, **undefined, **self.shares()}


class Replay:
    """A replay of a cell's training in this process, from the first step to the last."""

    def __init__(self, trainer: Trainer, record_every: int) -> None:
        self.trainer, self.record_every = trainer, record_every
        model, cell = trainer.model, trainer.cell
        weights = model.embedding_parameters()
        names = (EMBEDDING,) if model.tied else (EMBEDDING, HEAD)
        entries = (cell.optimizer.embedding, cell.optimizer.head)
        self.drifts = {
            name: Drift(weight, rule_of(entry, cell.training))
            for name, weight, entry in zip(names, weights, entries[-len(names) :], strict=True)
        }
        self.losses: list[float] = []
        """Loss of each step."""
        # Gradients of the current step before clipping: of each matrix, and of a tied embedding as
        # the input.
        self._grads = {
            name: torch.zeros_like(drift.weight, dtype=torch.float64)
            for name, drift in self.drifts.items()
        }
        self._lookup_VD = torch.zeros_like(model.embedding.weight, dtype=torch.float64)

    @property
    def output(self) -> Drift:
        """The drift of the matrix that computes the logits."""
        return self.drifts[EMBEDDING if self.trainer.model.tied else HEAD]

    def run(self) -> None:
        """Train from the first step to the last."""
        trainer, cell, steps = self.trainer, self.trainer.cell, self.trainer.cell.steps
        losses = []
        with self._hooks(), Progress(cell.n_tokens, "tok", f"replay of {cell.id}") as progress:
            for step in range(steps):
                records = (step + 1) % self.record_every == 0 or step + 1 == steps
                before = {
                    name: drift.weight.detach().clone()
                    for name, drift in self.drifts.items()
                    if records
                }
                self._lookup_VD.zero_()
                loss, grad_norm = trainer.train_step(step)
                losses.append(loss.double())
                self._add(torch.clamp(cell.training.grad_clip / (grad_norm + _CLIP_EPS), max=1.0))
                for name, weight_VD in before.items():
                    self.drifts[name].record(step + 1, weight_VD)
                progress.update(cell.n_tokens // steps)
        self.losses = torch.stack(losses).tolist()

    def _add(self, clip: Tensor) -> None:
        """Add the step just done to the drifts; clipping multiplied its gradients by ``clip``."""
        optimizers = (self.trainer.optimizers.embedding, self.trainer.optimizers.head)
        states = {
            parameter: (optimizer.state[parameter], group)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        for name, drift in self.drifts.items():
            grad_VD = self._grads[name] * clip
            if self.trainer.model.tied:
                lookup_VD = self._lookup_VD * clip
                sides = {"input": lookup_VD, "output": grad_VD - lookup_VD}
            else:
                sides = {"input" if name == EMBEDDING else "output": grad_VD}
            drift.add(sides, *states[drift.weight])

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        """Register hooks that copy the gradients of the matrices and of the embedding's output."""

        def watch(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            def add(grad: Tensor) -> None:
                self._lookup_VD.index_add_(0, inputs[0].flatten(), grad.flatten(0, 1).double())

            output.register_hook(add)  # type: ignore[no-untyped-call]

        def keep(weight: Tensor, grad_VD: Tensor) -> None:
            assert weight.grad is not None
            grad_VD.copy_(weight.grad)  # the sum over the micro-batches so far

        handles = [
            drift.weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(keep, grad_VD=self._grads[name])
            )
            for name, drift in self.drifts.items()
        ]
        if self.trainer.model.tied:
            handles.append(self.trainer.model.embedding.register_forward_hook(watch))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def relative_loss_difference(losses: list[float], run_dir: Path) -> float:
    """Return the largest relative difference between a run's logged losses and the ``losses`` of a
    replay's steps.

    Raises ``ValueError`` for a history that does not reach the last step, or is not the run's.
    """
    rows = run_history(run_dir)
    if not rows or rows[-1]["step"] != len(losses):
        last = rows[-1]["step"] if rows else 0
        raise ValueError(
            f"{run_dir}: its history ends with step {last} of {len(losses)}; train this cell again"
        )
    differences, start = [], 0
    for row in rows:
        mean = math.fsum(losses[start : row["step"]]) / (row["step"] - start)
        differences.append(abs(mean - row["loss"]) / abs(row["loss"]))
        start = row["step"]
    return float(torch.tensor(differences, dtype=torch.float64).max())  # NaN if one is
