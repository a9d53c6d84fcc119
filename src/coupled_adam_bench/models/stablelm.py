"""The decoder of the paper's large scale: SwiGLU and RoPE [P], sized as Modalities' defaults [I].

Shapes: B sequences, T tokens, D = d_model, H heads of K = D / H, J = K / 2 pairs of coordinates,
F = d_ffn.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coupled_adam_bench.models.base import (
    LAYER_NORM_EPS,
    LanguageModel,
    TransformerBlock,
    Weight,
)

ROPE_BASE = 10_000.0  # [I]
_ROPE = {"rope_theta": ROPE_BASE, "partial_rotary_factor": 1.0}


def rope_tables(seq_len: int, d_head: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the angle t base^(-j / J) of position t and pair j, float32, TJ.

    This is eq. 15 of Su et al. 2021 (arXiv 2104.09864).
    """
    exponents_J = torch.arange(0, d_head, 2, dtype=torch.float32, device=device) / d_head
    positions_T = torch.arange(seq_len, dtype=torch.float32, device=device)
    angles_TJ = positions_T[:, None] * (1.0 / ROPE_BASE**exponents_J)
    return angles_TJ.cos(), angles_TJ.sin()


def rotated(x_BHTK: Tensor, cos_TJ: Tensor, sin_TJ: Tensor) -> Tensor:
    """Rotate coordinates j and j + J of each head by the angle of pair j, in the dtype of ``x``.

    The products are computed in the wider dtype of ``x`` and the tables.
    """
    first_BHTJ, second_BHTJ = x_BHTK.chunk(2, dim=-1)
    pair = (
        first_BHTJ * cos_TJ - second_BHTJ * sin_TJ,
        second_BHTJ * cos_TJ + first_BHTJ * sin_TJ,
    )
    return torch.cat(pair, dim=-1).to(x_BHTK.dtype)


class StableLMBlock(TransformerBlock):
    """A layer whose queries and keys are rotated by their positions, with a SwiGLU MLP."""

    def __init__(self, d_model: int, n_head: int, d_ffn: int) -> None:
        super().__init__(d_model, n_head, d_ffn)
        self.mlp_gate_up = nn.Linear(d_model, 2 * d_ffn, bias=False)
        self.mlp_proj = nn.Linear(d_ffn, d_model, bias=False)

    def rotate(self, q_BHTK: Tensor, k_BHTK: Tensor, *angles: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys by the angles of their positions."""
        cos_TJ, sin_TJ = angles
        assert cos_TJ.dtype == torch.float32, "bf16 cannot tell neighbouring positions apart"
        return rotated(q_BHTK, cos_TJ, sin_TJ), rotated(k_BHTK, cos_TJ, sin_TJ)

    def mlp(self, x_BTD: Tensor) -> Tensor:
        """Return ``mlp_proj(silu(gate(x)) * up(x))``, shape BTD (Shazeer, arXiv 2002.05202)."""
        gate_BTF, up_BTF = self.mlp_gate_up(x_BTD).chunk(2, dim=-1)
        return self.mlp_proj(F.silu(gate_BTF) * up_BTF)  # type: ignore[no-any-return]


class StableLM(LanguageModel):
    """The decoder that transformers calls StableLM, with rotary positions."""

    block_type = StableLMBlock
    learned_positions = False
    sizes = {
        "vocab_size": "vocab_size",
        "max_position_embeddings": "seq_len",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "num_key_value_heads": "n_head",
        "hidden_size": "d_model",
        "intermediate_size": "d_ffn",
        "tie_word_embeddings": "tied",
    }
    fixed = {
        "model_type": "stablelm",
        "architectures": ["StableLmForCausalLM"],
        "hidden_act": "silu",
        "layer_norm_eps": LAYER_NORM_EPS,
        "use_qkv_bias": False,
        "use_parallel_residual": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        # transformers 5 reads `rope_parameters`, transformers 4 the same keys at the top.
        **_ROPE,
        "rope_parameters": {"rope_type": "default", **_ROPE},
    }

    def inputs(self, tokens_BT: Tensor, places_BT: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the embedding, shape BTD, and the tables of :func:`rope_tables`.

        The tables are computed at each call, so there is no buffer to move, shard or leave on
        ``meta``.
        """
        d_head = self.d_model // self.n_head
        tables = rope_tables(tokens_BT.shape[1], d_head, tokens_BT.device)
        if places_BT is not None:
            cos_TJ, sin_TJ = tables
            tables = cos_TJ[places_BT][:, None], sin_TJ[places_BT][:, None]  # shape B1TJ
        return self.embedding(tokens_BT), *tables

    def weights(self) -> Iterator[Weight]:
        """Yield the weights by their names in transformers."""
        yield Weight("embedding", ("model.embed_tokens",))
        for layer in range(self.n_layer):
            ours, theirs = f"blocks.{layer}.", f"model.layers.{layer}."
            yield Weight(f"{ours}ln_1", (f"{theirs}input_layernorm",), bias=True)
            yield Weight(
                f"{ours}attn_qkv", tuple(f"{theirs}self_attn.{name}_proj" for name in "qkv")
            )
            yield Weight(f"{ours}attn_proj", (f"{theirs}self_attn.o_proj",))
            yield Weight(f"{ours}ln_2", (f"{theirs}post_attention_layernorm",), bias=True)
            yield Weight(f"{ours}mlp_gate_up", (f"{theirs}mlp.gate_proj", f"{theirs}mlp.up_proj"))
            yield Weight(f"{ours}mlp_proj", (f"{theirs}mlp.down_proj",))
        yield Weight("ln_f", ("model.norm",), bias=True)
        if not self.tied:
            yield Weight("head", ("lm_head",))
