"""Adam whose last weights are averaged."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class TailAverageAdamW(torch.optim.AdamW):
    """AdamW that ends with the mean of the weights after each of its last steps.

    ``steps`` is the length of the run, and ``last`` the number of steps that are averaged. Before
    the last step all weights are AdamW's.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        steps: int,
        last: int,
    ) -> None:
        super().__init__(params, lr=lr, betas=tuple(betas), weight_decay=weight_decay, fused=True)
        self._steps = steps
        self._last = last

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take AdamW's step; after the last one the weights are their mean."""
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter in self.state:
                    self._average(parameter, self.state[parameter])

    def _average(self, parameter: Tensor, state: dict[str, Any]) -> None:
        step = int(state["step"])
        n_averaged = step - (self._steps - self._last)
        if n_averaged < 1:
            return
        if n_averaged == 1:
            state["average"] = parameter.clone()
        else:
            state["average"].lerp_(parameter, 1 / n_averaged)
        if step == self._steps:
            parameter.copy_(state["average"])
