"""Ember, an optimizer of embeddings, as an example of an optimizer of your own (Shah 2026).

It has no first moment, and as second moment the outer product of one number for each row and one
for each column (arXiv 2607.01455). ``own_optimizer.yaml`` beside this file compares it with Adam.
Shapes: V rows (tokens), D columns.
"""

import torch


class Ember(torch.optim.Optimizer):
    """Ember for matrices with a row for each token.

    For a matrix E with gradient g, step t is, with all moments 0 at the start::

        r_i  <- beta2 r_i + (1 - beta2) mean_j(g_ij^2)      one number for each row
        c_j  <- beta2 c_j + (1 - beta2) mean_i(g_ij^2)      one number for each column
        v_ij  = r_i c_j / (mean_j(c_j) (1 - beta2^t))
        E_ij <- (1 - lr weight_decay) E_ij - lr g_ij / (sqrt(v_ij) + eps)

    The paper also keeps the moment of the whole matrix; it is the mean of the c_j, since averaging
    is linear.
    """

    def __init__(self, params, lr=1e-3, beta2=0.999, eps=1e-8, weight_decay=0.0):
        defaults = {"lr": lr, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure=None):
        """Update all matrices that have a gradient."""
        assert closure is None
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._update(matrix, group)

    def _update(self, matrix, group):
        grad_VD, state, beta2 = matrix.grad, self.state[matrix], group["beta2"]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["row_V1"] = torch.zeros_like(matrix[:, :1])
            state["column_D"] = torch.zeros_like(matrix[0])
        state["step"] += 1
        square_VD = grad_VD.square()
        row_V1 = state["row_V1"].lerp_(square_VD.mean(1, keepdim=True), 1 - beta2)
        column_D = state["column_D"].lerp_(square_VD.mean(0), 1 - beta2)
        # As long as all gradients are 0 the moment is 0, too, and not 0 / 0.
        mean = column_D.mean().clamp(min=torch.finfo(matrix.dtype).tiny)
        column_D = column_D / (mean * (1 - beta2 ** state["step"].item()))
        # The root of each, since the product of two small numbers may round to 0.
        root_VD = row_V1.sqrt() * column_D.sqrt()
        # Read from the group at each step: the schedule sets it there.
        matrix.mul_(1 - group["lr"] * group["weight_decay"])
        matrix.addcdiv_(grad_VD, root_VD + group["eps"], value=-group["lr"])
