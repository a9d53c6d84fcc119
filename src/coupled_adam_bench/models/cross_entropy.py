"""Cross-entropy of a linear head that never holds the logits of the whole batch.

Shapes: T tokens of all sequences, C tokens of a chunk, D = d_model, V = vocab_size.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from coupled_adam_bench.machine.device import LOGITS_CHUNK

IGNORED = -100
# Elements of a block of a matrix whose cast stays in a CPU's cache.
_BLOCK = 2**18


class LogitObserver(Protocol):
    """What is given the logits of each chunk of tokens, shape CV, at least float32, and does not
    change them.

    Where tokens share their logits, ``rows_T`` is the row of each token.
    """

    def __call__(self, logits_CV: Tensor, rows_T: Tensor | None = None) -> None:
        """Take the logits of a chunk."""


Softmax = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A function that returns the softmax of logits CV and the losses of targets C1; it may overwrite
the logits."""
ChunkLoss = Callable[[Tensor, Tensor, float, float | None], tuple[Tensor, Tensor, Tensor]]
"""A function of logits CV, targets C, the z-loss and the soft cap, that returns the logits'
gradients, the losses and the z-losses of shape C, as ``loss_kernel.by_kernel`` does."""


def compute_dtype(hidden_TD: Tensor) -> torch.dtype:
    """Return the type of the products with hidden states: that of autocast, if it is on."""
    device = hidden_TD.device.type
    return (
        torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_TD.dtype
    )


def _in_place(logits_CV: Tensor, targets_C1: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax and losses (shape C1) by several passes over logits in the cache, which are
    overwritten."""
    target_logits_C1 = logits_CV.gather(1, targets_C1)
    exact_CV = logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32))
    max_C1 = exact_CV.amax(1, keepdim=True)
    exp_CV = exact_CV.sub_(max_C1).exp_()
    sum_C1 = exp_CV.sum(1, keepdim=True)
    return exp_CV.div_(sum_C1).to(logits_CV.dtype), sum_C1.log() - (target_logits_C1 - max_C1)


def by_log_softmax(logits_CV: Tensor, targets_C1: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax and losses (shape C1) by functions that torch's compiler makes one kernel
    of."""
    exact = torch.promote_types(logits_CV.dtype, torch.float32)
    log_probs_CV = torch.log_softmax(logits_CV, 1, dtype=exact)
    loss_C1 = -log_probs_CV.gather(1, targets_C1)
    return log_probs_CV.exp_().to(logits_CV.dtype), loss_C1


_SOFTMAX: dict[str, Softmax] = {"cpu": _in_place, "cuda": by_log_softmax}


def cap(logits: Tensor, soft_cap: float | None) -> Tensor:
    """Return ``c tanh(logits / c)`` for a soft cap c, and without one the logits themselves."""
    return logits if soft_cap is None else soft_cap * (logits / soft_cap).tanh()


def capped(logits_CV: Tensor, soft_cap: float, slopes_CV: Tensor) -> Tensor:
    """Return the capped logits in float32 or better, over the others if they are, and write their
    derivative."""
    exact_CV = logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32))
    tanh_CV = exact_CV.div_(soft_cap).tanh_()
    torch.addcmul(tanh_CV.new_ones(()), tanh_CV, tanh_CV, value=-1, out=slopes_CV)
    return tanh_CV.mul_(soft_cap)


def _add(total_VD: Tensor, product_VD: Tensor) -> None:
    """Add a product of lower precision to ``total_VD`` in place.

    A CPU casts it before it adds it, so it does that block by block, in the cache.
    """
    if total_VD.device.type != "cpu":
        total_VD += product_VD
        return
    rows = max(1, _BLOCK // total_VD.shape[1])
    blocks = zip(torch.split(total_VD, rows), torch.split(product_VD, rows), strict=True)
    for total, product in blocks:
        total += product


def _by_softmax(
    logits_CV: Tensor,
    safe_C1: Tensor,
    z_loss: float,
    soft_cap: float | None,
    slopes_CV: Tensor | None,
    softmax: Softmax,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of logits, which may be overwritten, the losses of targets (shape C1),
    and with a z-loss the logarithms of Z (shape C1).

    ``slopes_CV`` is memory for the derivative of the soft cap, if there is one.
    """
    dtype = logits_CV.dtype
    if soft_cap is not None and slopes_CV is not None:
        logits_CV = capped(logits_CV, soft_cap, slopes_CV)
    target_logits_C1 = logits_CV.gather(1, safe_C1) if z_loss else None
    grad_CV, loss_C1 = softmax(logits_CV, safe_C1)
    # softmax - 1 is computed from the loss, since bfloat16 would round a softmax near 1 to 1.
    target_grads_C1 = loss_C1.neg().expm1()
    log_z_C1 = None
    if target_logits_C1 is not None:
        log_z_C1 = loss_C1 + target_logits_C1
        grad_CV.mul_(1 + 2 * z_loss * log_z_C1)
        target_grads_C1 += 2 * z_loss * log_z_C1 * loss_C1.neg().exp()
    # On a CPU, scatter_ would cast a whole matrix in bfloat16 to float32 and back.
    all_C = torch.arange(len(grad_CV), device=grad_CV.device)
    grad_CV[all_C, safe_C1[:, 0]] = target_grads_C1[:, 0].to(grad_CV.dtype)
    if slopes_CV is not None:
        grad_CV = grad_CV.mul_(slopes_CV).to(dtype)
    return grad_CV, loss_C1, log_z_C1


class _SumCrossEntropy(torch.autograd.Function):
    """Sum of cross-entropies whose gradients are computed in the forward pass, chunk by chunk.

    The gradient of a chunk's logits is softmax minus one-hot. Both products that the backward pass
    needs are computed while the logits exist, and the logits are then dropped.

    The z-loss adds ``z_loss (log Z)^2`` of each token, whose gradient is ``2 z_loss log Z`` times
    the softmax. The soft cap multiplies the gradient by its derivative. Two sums are returned, with
    and without the z-loss. Only the first can be differentiated.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        weight_VD: Tensor,
        targets_T: Tensor,
        z_loss: float,
        soft_cap: float | None,
        softmax: Softmax | None,
        chunk_loss: ChunkLoss | None,
    ) -> tuple[Tensor, Tensor]:
        dtype, device = compute_dtype(hidden_TD), hidden_TD.device
        softmax, chunk = softmax or _SOFTMAX[device.type], LOGITS_CHUNK[device.type]
        with torch.autocast(device.type, enabled=False):
            hidden, weight = hidden_TD.to(dtype), weight_VD.to(dtype)
            grad_hidden_TD = torch.empty_like(hidden_TD)
            grad_weight_VD = torch.zeros_like(weight_VD)
            loss = torch.zeros((), dtype=torch.promote_types(dtype, torch.float32), device=device)
            penalty = torch.zeros_like(loss)
            kept_T1 = (targets_T != IGNORED)[:, None]
            factor_T1 = kept_T1.to(dtype)
            # One buffer for all chunks.
            all_logits_CV = hidden.new_empty(min(chunk, len(hidden)), len(weight))
            product_VD = None if dtype == grad_weight_VD.dtype else torch.empty_like(weight)
            all_slopes_CV = None
            if soft_cap is not None and chunk_loss is None:
                all_slopes_CV = torch.empty_like(all_logits_CV)
            for start in range(0, len(targets_T), chunk):
                rows = slice(start, start + chunk)
                hidden_CD, kept_C1, factor_C1 = hidden[rows], kept_T1[rows], factor_T1[rows]
                safe_C1 = targets_T[rows, None].clamp(min=0)
                logits_CV = torch.mm(hidden_CD, weight.T, out=all_logits_CV[: len(hidden_CD)])
                if chunk_loss is not None:
                    grad_CV, loss_C, penalty_C = chunk_loss(
                        logits_CV, targets_T[rows], z_loss, soft_cap
                    )
                    loss += loss_C.sum()
                    penalty += penalty_C.sum()
                else:
                    slopes_CV = None
                    if all_slopes_CV is not None:
                        slopes_CV = all_slopes_CV[: len(hidden_CD)]
                    grad_CV, loss_C1, log_z_C1 = _by_softmax(
                        logits_CV, safe_C1, z_loss, soft_cap, slopes_CV, softmax
                    )
                    loss += loss_C1.where(kept_C1, 0).sum()
                    if log_z_C1 is not None:
                        penalty += z_loss * log_z_C1.square().where(kept_C1, 0).sum()
                # Ignored rows are masked here, where a row has D numbers instead of V.
                torch.mul(grad_CV @ weight, factor_C1, out=grad_hidden_TD[rows])
                kept_hidden_CD = hidden_CD * factor_C1
                if product_VD is None:
                    grad_weight_VD.addmm_(grad_CV.T, kept_hidden_CD)
                else:
                    torch.mm(grad_CV.T, kept_hidden_CD, out=product_VD)
                    _add(grad_weight_VD, product_VD)
        ctx.save_for_backward(grad_hidden_TD, grad_weight_VD)
        ctx.mark_non_differentiable(loss)
        return loss + penalty, loss

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden_TD, grad_weight_VD = ctx.saved_tensors
        scale, _ = grad_outputs
        # Scaling in place is safe: nothing else uses these tensors, and a second backward pass is
        # refused.
        of_inputs = grad_hidden_TD.mul_(scale), grad_weight_VD.mul_(scale)
        return *of_inputs, None, None, None, None, None


def sum_cross_entropy(
    hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, soft_cap: float | None = None
) -> Tensor:
    """Return the sum over tokens of ``-log softmax(hidden @ weight.T)[target]`` in nats: a scalar,
    at least float32.

    With ``soft_cap`` c, the logits are ``c tanh(hidden @ weight.T / c)``. Targets of -100 are
    ignored. The result can be differentiated once. Under autocast the products have its dtype.
    """
    return sum_with_z_loss(hidden_TD, weight_VD, targets_T, 0.0, soft_cap)[0]


def sum_with_z_loss(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    targets_T: Tensor,
    z_loss: float,
    soft_cap: float | None = None,
    softmax: Softmax | None = None,
    chunk_loss: ChunkLoss | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the sum over tokens of cross-entropy and ``z_loss (log Z)^2``, and the sum of only the
    cross-entropy.

    Only the first sum can be differentiated. ``softmax`` takes the place of the device's softmax,
    and ``chunk_loss`` the place of all that is done with a chunk's logits. Everything else is as in
    :func:`sum_cross_entropy`.
    """
    arguments = (hidden_TD, weight_VD, targets_T, z_loss, soft_cap, softmax, chunk_loss)
    return _SumCrossEntropy.apply(*arguments)  # type: ignore[no-any-return, no-untyped-call]


@torch.no_grad()
def token_cross_entropy(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    targets_T: Tensor,
    observe: LogitObserver | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Return each token's cross-entropy in nats, shape T, at least float32, without gradient;
    ignored tokens have 0.

    ``observe`` sees the logits while they exist, those of ignored tokens too, and with a soft cap
    the capped ones.
    """
    chunk = LOGITS_CHUNK[hidden_TD.device.type]
    losses = []
    for start in range(0, len(targets_T), chunk):
        logits_CV = hidden_TD[start : start + chunk] @ weight_VD.T
        logits_CV = cap(logits_CV.to(torch.promote_types(logits_CV.dtype, torch.float32)), soft_cap)
        targets_C = targets_T[start : start + chunk]
        losses.append(
            torch.nn.functional.cross_entropy(
                logits_CV, targets_C, reduction="none", ignore_index=IGNORED
            )
        )
        if observe is not None:
            observe(logits_CV)
        del logits_CV  # before the next chunk's are made
    return torch.cat(losses)
