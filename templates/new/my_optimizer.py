"""An optimizer of mine: AdamW that divides by another power of the second moment."""

import torch


class MyOptimizer(torch.optim.Optimizer):
    """AdamW with ``power`` in place of the square root; a power of 0.5 is AdamW.

    A bench gives it the embedding: each row of a matrix is a token. ``lr`` follows a schedule.
    """

    def __init__(self, params, lr, weight_decay=0.0, betas=(0.9, 0.95), eps=1e-8, power=0.4):
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "betas": betas,
            "eps": eps,
            "power": power,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure=None):
        """Take a step; all that it remembers is in ``self.state``, so that a stopped run can go
        on."""
        assert closure is None, "the bench gives none"
        for group in self.param_groups:
            for weight in group["params"]:
                self._step(weight, self.state[weight], group)

    def _step(self, weight, state, group):
        beta1, beta2 = group["betas"]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
        state["step"] += 1
        exp_avg, exp_avg_sq = state["exp_avg"], state["exp_avg_sq"]
        exp_avg.lerp_(weight.grad, 1 - beta1)
        exp_avg_sq.mul_(beta2).addcmul_(weight.grad, weight.grad, value=1 - beta2)
        # Both begin at zero, which the corrections take out.
        mean = exp_avg / (1 - beta1 ** state["step"])
        square = exp_avg_sq / (1 - beta2 ** state["step"])
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.addcdiv_(mean, square.pow(group["power"]).add_(group["eps"]), value=-group["lr"])
