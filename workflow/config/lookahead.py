"""An optimizer of the study averaging.yaml."""

import torch


class Lookahead(torch.optim.AdamW):
    """AdamW that goes back, every ``k`` steps, to a moving average of where it was then.

    The paper is arXiv 1907.08610.
    """

    def __init__(self, params, lr, weight_decay=0.0, k=5, alpha=0.5):
        super().__init__(params, lr=lr, betas=(0.9, 0.95), weight_decay=weight_decay)
        self.k, self.alpha = k, alpha

    @torch.no_grad()
    def step(self, closure=None):
        """Take a step of AdamW, and go back to the average after every ``k``."""
        weights = [weight for group in self.param_groups for weight in group["params"]]
        new = [weight for weight in weights if weight not in self.state]
        starts = [weight.clone() for weight in new]
        super().step(closure)
        for weight, start in zip(new, starts, strict=True):
            self.state[weight]["average"] = start
        for weight, state in self.state.items():
            if state["step"] % self.k == 0:
                weight.copy_(state["average"].lerp_(weight, self.alpha))
