"""Cross-entropy of a linear head without the logits of the whole batch.

Shapes: T tokens of all sequences in a row, C of them in a chunk, D = d_model, V = vocab_size.
"""

from typing import Any

import torch
from torch import Tensor

IGNORED = -100
# Logits held at once, in numbers. On a CPU just under the 32 MiB that glibc can keep instead of fetching it
# from the kernel page by page in every step; GPUs want larger products.
_CHUNK_NUMBERS = {"cpu": 8_000_000, "cuda": 2**28}


def _chunk_size(hidden_TD: Tensor, weight_VD: Tensor) -> int:
    return max(16, _CHUNK_NUMBERS.get(hidden_TD.device.type, 2**28) // weight_VD.shape[0])


def _compute_dtype(hidden_TD: Tensor) -> torch.dtype:
    device = hidden_TD.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_TD.dtype


class _SumCrossEntropy(torch.autograd.Function):
    """Sum of cross-entropies, its gradients computed chunk by chunk beside the loss.

    The gradient of the logits of a chunk is softmax minus one-hot, so with the logits at hand both products that the
    backward pass needs are taken at once and the logits are dropped.
    """

    @staticmethod
    def forward(ctx: Any, hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> Tensor:
        dtype = _compute_dtype(hidden_TD)
        with torch.autocast(hidden_TD.device.type, enabled=False):
            hidden, weight = hidden_TD.to(dtype), weight_VD.to(dtype)
            grad_hidden_TD = torch.empty_like(hidden_TD)
            grad_weight_VD = torch.zeros_like(weight_VD)
            loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
            chunk = _chunk_size(hidden_TD, weight_VD)
            for start in range(0, len(targets_T), chunk):
                rows = slice(start, start + chunk)
                targets_C = targets_T[rows]
                kept_C = targets_C != IGNORED
                safe_C1 = targets_C.clamp(min=0)[:, None]
                log_probs_CV = torch.log_softmax(hidden[rows] @ weight.T, 1, dtype=torch.float32)
                loss -= log_probs_CV.gather(1, safe_C1).squeeze(1).mul(kept_C).sum()
                grad_CV = log_probs_CV.exp_()
                grad_CV.scatter_add_(1, safe_C1, torch.full_like(safe_C1, -1, dtype=torch.float32))
                grad_CV = grad_CV.to(dtype)
                # Ignored rows are masked here, where a row has D numbers and not V.
                grad_hidden_TD[rows] = (grad_CV @ weight) * kept_C[:, None]
                kept_hidden_CD = hidden[rows] * kept_C[:, None]
                if dtype == grad_weight_VD.dtype:
                    grad_weight_VD.addmm_(grad_CV.T, kept_hidden_CD)
                else:
                    grad_weight_VD += grad_CV.T @ kept_hidden_CD
        ctx.save_for_backward(grad_hidden_TD, grad_weight_VD)
        return loss

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_hidden_TD, grad_weight_VD = ctx.saved_tensors
        (scale,) = grad_outputs
        return grad_hidden_TD * scale, grad_weight_VD * scale, None


def sum_cross_entropy(hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> Tensor:
    """Return the sum over tokens of ``-log softmax(hidden @ weight.T)[target]`` in nats, as a float32 scalar.

    Targets of -100 are ignored. Differentiable once; under autocast the products are taken in its dtype.
    """
    return _SumCrossEntropy.apply(hidden_TD, weight_VD, targets_T)  # type: ignore[no-any-return, no-untyped-call]


@torch.no_grad()
def token_cross_entropy(hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> Tensor:
    """Return each token's cross-entropy in nats, without gradient: float32, shape T, 0 where the target is -100."""
    chunk = _chunk_size(hidden_TD, weight_VD)
    losses = [
        torch.nn.functional.cross_entropy(
            (hidden_TD[start : start + chunk] @ weight_VD.T).float(),
            targets_T[start : start + chunk],
            reduction="none",
            ignore_index=IGNORED,
        )
        for start in range(0, len(targets_T), chunk)
    ]
    return torch.cat(losses)
