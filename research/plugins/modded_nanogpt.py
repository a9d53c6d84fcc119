"""Plug-ins (docs/plugins.md) for the optimizer track of modded-nanogpt: its model without biases,
its initial values, and its order of the data.

    models:
      - architecture: {path: research.plugins.modded_nanogpt.ModdedNanoGPT}
    training:
      init: {path: research.plugins.modded_nanogpt.ZeroProjections}
      data_order: {path: research.plugins.modded_nanogpt.Sequential}

The model has RMSNorm, also behind the embedding, squared ReLU, normalized queries and keys, and
RoPE.

Shapes: B sequences, T tokens, D = d_model, H heads of K = D / H.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.gpt2 import GPT2Block
from coupled_adam_bench.models.plug_ins import ArchitecturePlugIn, InitializationPlugIn
from coupled_adam_bench.models.stablelm import StableLM, rotate
from coupled_adam_bench.study.settings import Training
from coupled_adam_bench.training.order import DataOrderPlugIn

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


class ModdedNanoGPT(StableLM, ArchitecturePlugIn):
    """Rotary positions as in StableLM, and a norm behind the embedding."""

    contract = 1
    block_type = ModdedNanoGPTBlock

    def __init__(
        self, *, rope_base: float = 10_000.0, rope_fraction: float = 1.0, **sizes: Any
    ) -> None:
        # StableLM's layers have an option that these have not.
        LanguageModel.__init__(self, **sizes)
        self.rope_base, self.rope_fraction = rope_base, rope_fraction
        self.ln_0 = self.block_type.norm(self.d_model)

    def inputs(self, tokens_BT: Tensor, places_BT: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the normalized embedding, shape BTD, and the tables of the rotary positions."""
        x_BTD, *tables = super().inputs(tokens_BT, places_BT)
        return self.ln_0(x_BTD), *tables


class ZeroProjections(InitializationPlugIn):
    """The head and the matrices behind attention and MLP are 0; the embedding has the standard
    deviation 1, and the rest sqrt(0.33 / inputs)."""

    contract = 1

    def fill(
        self,
        name: str,
        matrix: Tensor,
        model: LanguageModel,  # noqa: ARG002 - as of all
        generator: torch.Generator,
    ) -> None:
        """Fill a matrix with normal values."""
        if name == "embedding.weight":
            std = 1.0
        elif "_proj." in name or name == "head.weight":
            std = 0.0
        else:
            std = math.sqrt(0.33 / matrix.shape[1])
        matrix.normal_(0.0, std, generator=generator)


class Sequential(DataOrderPlugIn):
    """Windows without overlap as they lie in the text, the same for all seeds; after the last whole
    one, the first comes again."""

    contract = 1

    def __init__(self, n_tokens: int, training: Training, seed: int) -> None:  # noqa: ARG002
        self.batch, self.seq_len = training.batch_sequences, training.seq_len
        self.n_windows = (n_tokens - 1) // training.seq_len

    def positions(self, step: int) -> npt.NDArray[np.int64]:
        """Return where the inputs of a step lie, shape BT."""
        numbers = np.arange(step * self.batch, (step + 1) * self.batch)
        starts = numbers % self.n_windows * self.seq_len
        return starts[:, None] + np.arange(self.seq_len)
