"""The head of a language model without a transformer: a learned hidden state for each of K previous
tokens.

What becomes of the rows of a head depends on how often their tokens come and on the rule of the
optimizer. There are only K hidden states here, so the softmax is formed for K rows, however many
tokens a batch has.

Shapes: B sequences, T tokens (in the loss, of all sequences), K contexts, D = d_model, V =
vocab_size.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from coupled_adam_bench.models.base import (
    Family,
    InitialStd,
    LanguageModel,
    TransformerBlock,
    Weight,
    uninitialised_embedding,
)
from coupled_adam_bench.models.cross_entropy import (
    IGNORED,
    LogitObserver,
    cap,
    capped,
    compute_dtype,
)
from coupled_adam_bench.study.catalogue.architectures import ARCHITECTURES


def most_frequent(unigram_counts: NDArray[np.integer[Any]], n_contexts: int) -> list[int]:
    """Return the tokens that come most often, the first of equals first; those without a count
    follow."""
    by_count = np.argsort(-unigram_counts.astype(np.int64), kind="stable").tolist()
    return [*by_count, *range(len(by_count), n_contexts)][:n_contexts]


def contexts_of_tokens(frequent_tokens: Sequence[int], vocab_size: int) -> Tensor:
    """Return the context that each token makes as the previous one, shape V, on the CPU.

    The first three quarters of K ``frequent_tokens`` have their own, in this order. All other
    tokens share the rest in the order of their ids: the first, the second, and after the last the
    first again.
    """
    n_own = len(frequent_tokens) * 3 // 4
    contexts_V = np.full(vocab_size, -1)
    contexts_V[list(frequent_tokens[:n_own])] = np.arange(n_own)
    shared_V = contexts_V < 0
    contexts_V[shared_V] = n_own + np.arange(shared_V.sum()) % (len(frequent_tokens) - n_own)
    return torch.from_numpy(contexts_V)


class _SumOverPairs(torch.autograd.Function):
    """Sum of the cross-entropies of (context, target) pairs, whose gradients are computed in the
    forward pass.

    With n_k tokens in context k, the gradient of its logits is n_k softmax minus the counts of its
    targets. z-loss, soft cap and the two sums are those of the loss that has a row of logits for
    each token.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_KD: Tensor,
        weight_VD: Tensor,
        contexts_T: Tensor,
        targets_T: Tensor,
        z_loss: float,
        soft_cap: float | None,
    ) -> tuple[Tensor, Tensor]:
        dtype, vocab_size = compute_dtype(hidden_KD), len(weight_VD)
        with torch.autocast(hidden_KD.device.type, enabled=False):
            hidden, weight = hidden_KD.to(dtype), weight_VD.to(dtype)
            logits_KV = hidden @ weight.T
            logits_KV = logits_KV.to(torch.promote_types(dtype, torch.float32))
            slopes_KV = None if soft_cap is None else torch.empty_like(logits_KV)
            if soft_cap is not None and slopes_KV is not None:
                logits_KV = capped(logits_KV, soft_cap, slopes_KV)
            # What has a row for each token elsewhere becomes counts here: of the tokens of each
            # context, and of each pair of context and target.
            kept_T = (targets_T != IGNORED).to(logits_KV.dtype)
            pairs_T = contexts_T * vocab_size + targets_T.clamp(min=0)
            n_K1 = logits_KV.new_zeros(len(hidden)).index_add_(0, contexts_T, kept_T)[:, None]
            target_logits = (logits_KV.view(-1).index_select(0, pairs_T) * kept_T).sum()
            max_K1 = logits_KV.amax(1, keepdim=True)
            exp_KV = logits_KV.sub_(max_K1).exp_()
            sum_K1 = exp_KV.sum(1, keepdim=True)
            log_z_K1 = sum_K1.log() + max_K1
            loss = (n_K1 * log_z_K1).sum() - target_logits
            # The memory of the softmax becomes that of its gradient.
            grad_KV = exp_KV.mul_(n_K1 * (1 + 2 * z_loss * log_z_K1) / sum_K1)
            grad_KV.view(-1).index_add_(0, pairs_T, kept_T, alpha=-1)
            if slopes_KV is not None:
                grad_KV.mul_(slopes_KV)
            grad = grad_KV.to(dtype)
            grads = (grad @ weight).to(hidden_KD.dtype), (grad.T @ hidden).to(weight_VD.dtype)
        ctx.save_for_backward(*grads)
        ctx.mark_non_differentiable(loss)
        return loss + z_loss * (n_K1 * log_z_K1.square()).sum(), loss

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden_KD, grad_weight_VD = ctx.saved_tensors
        scale, _ = grad_outputs
        # Scaling in place is safe: nothing else uses these tensors, and a second backward pass is
        # refused.
        return grad_hidden_KD.mul_(scale), grad_weight_VD.mul_(scale), None, None, None, None


class Contexts(LanguageModel):
    """A head on hidden states that are a LayerNorm of a vector of the previous token's context.

    The vectors are learned, or if ``tied`` the rows of the head of the ``frequent_tokens``, times a
    learned matrix. The head is the only matrix with a row for each token, and called the embedding.
    """

    block_type = TransformerBlock  # whose norm there is, but no layer
    learned_positions = False

    def __init__(
        self,
        vocab_size: int,
        seq_len: int,
        d_model: int,
        tied: bool,
        frequent_tokens: Sequence[int],
        soft_cap: float | None = None,
    ) -> None:
        super().__init__(vocab_size, seq_len, 0, 0, d_model, 0, tied=True, soft_cap=soft_cap)
        self.tied, self.frequent_tokens = tied, list(frequent_tokens)
        if tied:
            self.map = nn.Linear(d_model, d_model, bias=False)
        else:
            self.contexts = uninitialised_embedding(len(self.frequent_tokens), d_model)
        # No buffer: it follows from the tokens, which config.json has.
        self._contexts_V = contexts_of_tokens(self.frequent_tokens, vocab_size)

    def initial_std(self, name: str, value: Tensor, std: InitialStd) -> float:
        """Return the standard deviation of a matrix's initial values; the map keeps the length of
        vectors."""
        return (
            1 / math.sqrt(self.d_model)
            if name == "map.weight"
            else super().initial_std(name, value, std)
        )

    def contexts_of(self, tokens: Tensor) -> Tensor:
        """Return the context that each token makes as the previous one, in the shape of
        ``tokens``."""
        self._contexts_V = self._contexts_V.to(tokens.device)
        return self._contexts_V[tokens]

    def vectors(self) -> Tensor:
        """Return the vectors of the contexts before the norm, shape KD."""
        if not self.tied:
            return self.contexts.weight
        rows_K = torch.tensor(self.frequent_tokens, device=self.map.weight.device)
        return self.map(F.embedding(rows_K, self.head_weight))  # type: ignore[no-any-return]

    def inputs(self, tokens_BT: Tensor, places_BT: Tensor | None = None) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Return the vectors of the tokens' contexts, shape BTD; places make no difference."""
        return (self.vectors()[self.contexts_of(tokens_BT)],)

    def sums(self, tokens_BT: Tensor, targets_T: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
        """Return both sums of the loss from the counts of (context, target) pairs."""
        contexts_T = self.contexts_of(tokens_BT.flatten())
        hidden_KD = self.ln_f(self.vectors())
        sums: tuple[Tensor, Tensor] = _SumOverPairs.apply(  # type: ignore[no-untyped-call]
            hidden_KD, self.head_weight, contexts_T, targets_T, z_loss, self.soft_cap
        )
        return sums

    @torch.no_grad()
    def token_losses(
        self, tokens_BT: Tensor, targets_T: Tensor, observe: LogitObserver | None
    ) -> Tensor:
        """Return the cross-entropy of each target, shape T; ``observe`` is given the logits of all
        contexts once."""
        contexts_T = self.contexts_of(tokens_BT.flatten())
        logits_KV = self.ln_f(self.vectors()) @ self.head_weight.T
        logits_KV = cap(
            logits_KV.to(torch.promote_types(logits_KV.dtype, torch.float32)), self.soft_cap
        )
        losses_T = (
            logits_KV.logsumexp(1)[contexts_T] - logits_KV[contexts_T, targets_T.clamp(min=0)]
        )
        if observe is not None:
            observe(logits_KV, contexts_T)
        return losses_T.where(targets_T != IGNORED, 0)


def weights(model: Contexts) -> Iterator[Weight]:
    """Yield the weights of a model, whose names in the file are ours: transformers has no such
    model."""
    for name in (ARCHITECTURES["contexts"].embedding, "ln_f", "map" if model.tied else "contexts"):
        yield Weight(name, (name,))


FAMILY = Family(
    Contexts,
    weights,
    {
        "vocab_size": "vocab_size",
        "seq_len": "max_position_embeddings",
        "d_model": "hidden_size",
        "tied": "tie_word_embeddings",
        "frequent_tokens": "frequent_tokens",
    },
    {"architectures": ["Contexts"]},
)
