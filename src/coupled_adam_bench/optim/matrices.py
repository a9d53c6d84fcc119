"""What optimizers of embeddings have in common: they update one matrix after another, and check
what they are given."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

_BELOW_ONE = ("beta2", "momentum")


class MatrixOptimizer(torch.optim.Optimizer):
    """An optimizer of matrices with a row for each token, whose subclass says how a step changes
    one of them.

    Its numbers are at least 0, and decay rates below 1.

    Raises:
        ValueError: if a setting is out of range, or a parameter is not a matrix of real numbers.
    """

    def __init__(self, params: ParamsT, **defaults: Any) -> None:
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group after checking its settings and parameters."""
        super().add_param_group(param_group)
        try:
            self._check(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor | float] | None = None) -> Tensor | float | None:  # type: ignore[override]
        """Update all parameters that have a gradient; return the closure's loss if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.numel():
                    self._update(parameter, parameter.grad, group)
        return loss

    @abstractmethod
    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """Update a parameter and its state."""

    def _check(self, group: dict[str, Any]) -> None:
        for name in self.defaults:
            limit = 1 if name in _BELOW_ONE else math.inf
            if not (isinstance(group[name], str) or 0 <= group[name] < limit):
                what = "at least 0 and below 1" if limit == 1 else "at least 0"
                raise ValueError(f"{name}: {group[name]} is out of range; it must be {what}")
        for parameter in group["params"]:
            if parameter.ndim != 2 or not parameter.is_floating_point():
                raise ValueError(
                    f"params: {type(self).__name__} takes matrices of real numbers, got a parameter"
                    f" of shape {tuple(parameter.shape)} and {parameter.dtype}; give it to another"
                    " optimizer"
                )
