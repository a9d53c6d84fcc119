"""GPT-2 as the paper's small scale trains it: pre-norm, exact GELU, learned positions, no biases, tied [P][C].

Shapes: B sequences, T tokens, D = d_model, V = vocab_size, H heads of K = D / H, F = 4 D.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coupled_adam_bench.models.attention import causal_attention
from coupled_adam_bench.models.cross_entropy import IGNORED, sum_cross_entropy, token_cross_entropy

LAYER_NORM_EPS = 1e-5  # [C]


class Block(nn.Module):
    """One transformer layer: causal self-attention, then an MLP, each behind a LayerNorm and around a residual."""

    def __init__(self, d_model: int, n_head: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.ln_1 = nn.LayerNorm(d_model, LAYER_NORM_EPS, bias=False)
        self.attn_qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.attn_proj = nn.Linear(d_model, d_model, bias=False)
        self.ln_2 = nn.LayerNorm(d_model, LAYER_NORM_EPS, bias=False)
        self.mlp_fc = nn.Linear(d_model, 4 * d_model, bias=False)
        self.mlp_proj = nn.Linear(4 * d_model, d_model, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the residual stream after this layer, shape BTD."""
        qkv_BTD = self.attn_qkv(self.ln_1(x_BTD)).chunk(3, dim=-1)
        q_BHTK, k_BHTK, v_BHTK = (z.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for z in qkv_BTD)
        y_BHTK = causal_attention(q_BHTK, k_BHTK, v_BHTK)
        x_BTD = x_BTD + self.attn_proj(y_BHTK.transpose(1, 2).flatten(-2))
        return x_BTD + self.mlp_proj(F.gelu(self.mlp_fc(self.ln_2(x_BTD))))  # type: ignore[no-any-return]


class GPT2(nn.Module):
    """GPT-2 with a tied embedding; the loss never holds the logits of a whole batch."""

    def __init__(self, vocab_size: int, seq_len: int, n_layer: int, n_head: int, d_model: int) -> None:
        super().__init__()
        self.vocab_size, self.seq_len, self.n_head, self.d_model = vocab_size, seq_len, n_head, d_model
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(seq_len, d_model)
        self.blocks = nn.ModuleList(Block(d_model, n_head) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(d_model, LAYER_NORM_EPS, bias=False)

    @torch.no_grad()
    def init_weights(self, seed: int, std: float) -> None:
        """Draw all matrices from N(0, std), residual output projections from N(0, std / sqrt(2 n_layer)) [C].

        The numbers depend on ``seed`` alone, not on the device or on torch's global generator.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                scaled = std / math.sqrt(2 * len(self.blocks)) if "_proj." in name else std
                parameter.copy_(torch.empty(parameter.shape).normal_(0.0, scaled, generator=generator))

    def hidden(self, tokens_BT: Tensor) -> Tensor:
        """Return the final hidden states, shape BTD."""
        x_BTD = self.embedding(tokens_BT) + self.positions.weight[: tokens_BT.shape[1]]
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.ln_f(x_BTD)  # type: ignore[no-any-return]

    def logits(self, tokens_BT: Tensor) -> Tensor:
        """Return the logits of the next token, shape BTV: for tests and small inputs."""
        return F.linear(self.hidden(tokens_BT), self.embedding.weight)

    def forward(
        self, tokens_BT: Tensor, targets_BT: Tensor, reduction: Literal["mean", "sum", "none"] = "mean"
    ) -> Tensor:
        """Return the cross-entropy in nats, targets of -100 ignored: a scalar; for ``none`` shape BT, no gradient."""
        hidden_TD = self.hidden(tokens_BT).flatten(0, 1)
        if reduction == "none":
            return token_cross_entropy(hidden_TD, self.embedding.weight, targets_BT.flatten()).view_as(targets_BT)
        loss = sum_cross_entropy(hidden_TD, self.embedding.weight, targets_BT.flatten())
        return loss if reduction == "sum" else loss / (targets_BT != IGNORED).sum()
