"""The decoder of modded-nanogpt's optimizer track, without its biases.

It has RMSNorm, also behind the embedding, squared ReLU, normalized queries and keys, and RoPE.

Shapes: B sequences, T tokens, D = d_model, H heads of K = D / H.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coupled_adam_bench.models.base import Family, LanguageModel, Weight
from coupled_adam_bench.models.gpt2 import GPT2Block
from coupled_adam_bench.models.stablelm import StableLM, rotate
from coupled_adam_bench.study.catalogue.architectures import ARCHITECTURES

ATTENTION_SCALE = 0.12
"""Factor of the products of queries and keys, in place of 1 / sqrt(K)."""


class Projections(nn.Module):
    """Queries, keys and values by a matrix each, so that Muon makes each of them orthogonal."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return queries, keys and values side by side, of 3 D numbers for each token."""
        return torch.cat((self.q(x_BTD), self.k(x_BTD), self.v(x_BTD)), dim=-1)


class ModdedNanoGPTBlock(GPT2Block):
    """A layer whose queries and keys have length sqrt(K) before they are rotated."""

    @staticmethod
    def norm(width: int) -> nn.Module:
        """Return an RMSNorm (Zhang and Sennrich 2019, arXiv 1910.07467)."""
        return nn.RMSNorm(width)

    @staticmethod
    def qkv(d_model: int) -> nn.Module:
        """Return what computes queries, keys and values."""
        return Projections(d_model)

    def apply_rotary(
        self, q_BHTK: Tensor, k_BHTK: Tensor, *positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return queries and keys, normalized without weights and rotated by the angles of their
        positions."""
        cos_TJ, sin_TJ = positions
        q_BHTK, k_BHTK = (
            rotate(F.rms_norm(x, x.shape[-1:]), cos_TJ, sin_TJ) for x in (q_BHTK, k_BHTK)
        )
        return q_BHTK * (ATTENTION_SCALE * math.sqrt(q_BHTK.shape[-1])), k_BHTK

    def mlp(self, x_BTD: Tensor) -> Tensor:
        """Return ``mlp_proj(relu(mlp_fc(x))^2)``, shape BTD (So et al. 2021, arXiv 2109.08668)."""
        return self.mlp_proj(F.relu(self.mlp_fc(x_BTD)).square())  # type: ignore[no-any-return]


class ModdedNanoGPT(StableLM):
    """Rotary positions as in StableLM, and a norm behind the embedding."""

    block_type = ModdedNanoGPTBlock

    def __init__(self, *, rope_base: float, rope_fraction: float, **sizes: Any) -> None:
        # StableLM's layers have an option that these have not.
        LanguageModel.__init__(self, **sizes)
        self.rope_base, self.rope_fraction = rope_base, rope_fraction
        self.ln_0 = self.block_type.norm(self.d_model)

    def inputs(self, tokens_BT: Tensor, places_BT: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the normalized embedding, shape BTD, and the tables of the rotary positions."""
        x_BTD, *tables = super().inputs(tokens_BT, places_BT)
        return self.ln_0(x_BTD), *tables


def weights(model: ModdedNanoGPT) -> Iterator[Weight]:
    """Yield the weights of a model, whose names in the file are ours: transformers has no such
    model."""
    yield Weight("embedding", (ARCHITECTURES["modded_nanogpt"].embedding,))
    for name in ("ln_0", "ln_f") if model.tied else ("ln_0", "ln_f", "head"):
        yield Weight(name, ("lm_head" if name == "head" else name,))
    parts = (
        "ln_1",
        "ln_2",
        "attn_qkv.q",
        "attn_qkv.k",
        "attn_qkv.v",
        "attn_proj",
        "mlp_fc",
        "mlp_proj",
    )
    for name in (f"blocks.{layer}.{part}" for layer in range(model.n_layer) for part in parts):
        yield Weight(name, (name,))


FAMILY = Family(
    ModdedNanoGPT,
    weights,
    {
        "vocab_size": "vocab_size",
        "seq_len": "max_position_embeddings",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "d_model": "hidden_size",
        "d_ffn": "intermediate_size",
        "tied": "tie_word_embeddings",
        "rope_base": "rope_theta",
        "rope_fraction": "partial_rotary_factor",
    },
    {"architectures": ["ModdedNanoGPT"]},
)
