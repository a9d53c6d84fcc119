"""The drift of the mean embedding in training, split exactly into contributions of input, output and weight decay.

For known denominators, an optimizer's update is linear in all gradients so far. The update of the mean row is thus the
sum of the contributions of the gradient from the input and from the output, each with its own first moment.

Shapes: V = vocab_size, D = d_model.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from coupled_adam_bench.optim.build import Rule
from coupled_adam_bench.tools.theory.gradients import relative_sum

PARTS = ("input", "output", "decay")
# If this fraction of the displacement or more is unexplained by the parts, their shares would only be noise.
_ROUNDING = 0.1


class Drift:
    """The drift of the mean row of one matrix; call :meth:`add` after every step and :meth:`record` after some."""

    def __init__(self, weight: Tensor, rule: Rule | None) -> None:
        self.weight, self.rule = weight, rule
        self.mean_D = self.start_D = weight.detach().double().mean(0)
        self.moments: dict[str, Tensor] = {}
        """First moment of the gradients from ``input`` and from ``output``, each of shape VD."""
        self.decay_moment_D = torch.zeros_like(self.mean_D)
        self.parts: dict[str, Tensor] = {part: torch.zeros_like(self.mean_D) for part in PARTS}
        """Displacement of the mean by each part since the start, shape D."""
        self.records: dict[str, list[float]] = {
            name: [] for name in ("step", "mean_norm", "mean_norm_ratio", "displacement", "update_sum")
        }
        if rule is not None:
            self.records |= {name: [] for name in (*PARTS, "residual")}

    def add(self, grads: Mapping[str, Tensor], state: Mapping[str, Any], group: Mapping[str, Any]) -> None:
        """Add one step, given the clipped gradient from each side and the optimizer's state and group after it."""
        if self.rule is not None:
            rule, factor = self.rule, self.rule.factor(state, group)
            for side, grad_VD in grads.items():
                moment_VD = self.moments.setdefault(side, torch.zeros_like(grad_VD, dtype=torch.float64))
                moment_VD.mul_(rule.keep).add_(grad_VD, alpha=rule.take)
                self.parts[side] -= (moment_VD * factor).mean(0)
            decay_D = group["weight_decay"] * self.mean_D  # self.mean_D is still the mean before the step
            if not rule.decoupled_decay:
                decay_D = self.decay_moment_D.mul_(rule.keep).add_(decay_D)
            self.parts["decay"] -= group["lr"] * decay_D
        self.mean_D = self.weight.detach().double().mean(0)

    def record(self, step: int, before_VD: Tensor) -> None:
        """Record the mean after ``step`` steps; ``before_VD`` are the weights before the last of them."""
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
        """Return the share of each part in the displacement so far as ``<part>_share``; the shares add up to 1.

        A part's share is its projection on the displacement that the parts explain. All shares are None without a rule,
        or if the mean moved no further than the rounding of the weights.
        """
        explained_D = self._explained()
        displacement_D = self.mean_D - self.start_D
        residual = (displacement_D - explained_D).norm()
        if self.rule is None or not residual < _ROUNDING * displacement_D.norm():
            return {f"{part}_share": None for part in PARTS}
        square = explained_D @ explained_D
        return {f"{part}_share": (moved_D @ explained_D / square).item() for part, moved_D in self.parts.items()}

    def to_json(self) -> dict[str, Any]:
        """Return records and shares; parts and residual are None for an optimizer without a rule."""
        undefined = dict.fromkeys((*PARTS, "residual")) if self.rule is None else {}
        return {**self.records, **undefined, **self.shares()}
