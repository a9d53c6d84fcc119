"""The model of the paper's large scale: SwiGLU and RoPE [P], with the sizes of Modalities' defaults
[I].

Shapes: B sequences, T tokens, D = d_model, H heads of K = D / H, J pairs of coordinates that are
turned, K / 2 of all.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coupled_adam_bench.models.base import (
    LAYER_NORM_EPS,
    Family,
    LanguageModel,
    TransformerBlock,
    Weight,
)
from coupled_adam_bench.study.catalogue.architectures import ARCHITECTURES, QkNorm


def rope_tables(
    seq_len: int, d_rotated: int, base: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the angle t base^(-j / J) for each position t and pair j, float32,
    shape TJ.

    This is eq. 15 of Su et al. 2021 (arXiv 2104.09864).
    """
    exponents_J = torch.arange(0, d_rotated, 2, dtype=torch.float32, device=device) / d_rotated
    positions_T = torch.arange(seq_len, dtype=torch.float32, device=device)
    angles_TJ = positions_T[:, None] * (1.0 / base**exponents_J)
    return angles_TJ.cos(), angles_TJ.sin()


def rotate(x_BHTK: Tensor, cos_TJ: Tensor, sin_TJ: Tensor) -> Tensor:
    """Rotate coordinates j and j + J of each head by the angle of pair j and return the dtype of
    ``x``.

    Coordinates from 2 J on stay as they are. The products are computed in the wider dtype of ``x``
    and the tables.
    """
    n_pairs = cos_TJ.shape[-1]
    first_BHTJ, second_BHTJ, rest = x_BHTK.tensor_split((n_pairs, 2 * n_pairs), dim=-1)
    rotated = (
        first_BHTJ * cos_TJ - second_BHTJ * sin_TJ,
        second_BHTJ * cos_TJ + first_BHTJ * sin_TJ,
    )
    return torch.cat((*rotated, rest) if rest.shape[-1] else rotated, dim=-1).to(x_BHTK.dtype)


class StableLMBlock(TransformerBlock):
    """A layer with RoPE over the first coordinates of each head, or all of them, and a SwiGLU MLP.

    ``qk_norm`` normalizes the queries and keys of each head, with one weight for all heads of the
    layer.
    """

    def __init__(self, d_model: int, n_head: int, d_ffn: int, qk_norm: bool = False) -> None:
        super().__init__(d_model, n_head, d_ffn)
        self.qk_norm = qk_norm
        if qk_norm:
            self.q_norm = self.norm(d_model // n_head)
            self.k_norm = self.norm(d_model // n_head)
        self.mlp_gate_up = nn.Linear(d_model, 2 * d_ffn, bias=False)
        self.mlp_proj = nn.Linear(d_ffn, d_model, bias=False)

    def apply_rotary(
        self, q_BHTK: Tensor, k_BHTK: Tensor, *positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return queries and keys, normalized under ``qk_norm``, rotated by the angles of their
        positions."""
        if self.qk_norm:
            q_BHTK, k_BHTK = self.q_norm(q_BHTK), self.k_norm(k_BHTK)
        cos_TJ, sin_TJ = positions
        assert cos_TJ.dtype == torch.float32, "bf16 cannot tell neighbouring positions apart"
        return rotate(q_BHTK, cos_TJ, sin_TJ), rotate(k_BHTK, cos_TJ, sin_TJ)

    def mlp(self, x_BTD: Tensor) -> Tensor:
        """Return ``mlp_proj(silu(gate(x)) * up(x))``, shape BTD (Shazeer 2020, arXiv
        2002.05202)."""
        gate_BTF, up_BTF = self.mlp_gate_up(x_BTD).chunk(2, dim=-1)
        return self.mlp_proj(F.silu(gate_BTF) * up_BTF)  # type: ignore[no-any-return]


class StableLM(LanguageModel):
    """The decoder that transformers calls StableLM, with rotary positions."""

    block_type: ClassVar[type[TransformerBlock]] = StableLMBlock
    learned_positions = False

    def __init__(
        self,
        *,
        rope_base: float,
        rope_fraction: float = 1.0,
        qk_norm: QkNorm | bool = False,
        **sizes: Any,  # that every language model takes
    ) -> None:
        super().__init__(**sizes, qk_norm=bool(qk_norm))
        self.rope_base, self.rope_fraction, self.qk_norm = rope_base, rope_fraction, bool(qk_norm)

    def inputs(self, tokens_BT: Tensor, places_BT: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the embedding, shape BTD, and the tables of :func:`rope_tables`, or their rows at
        ``places_BT``.

        The tables are computed at each call, so there is no buffer to move, shard, broadcast or
        leave on ``meta``.
        """
        d_rotated = round(self.rope_fraction * self.d_model / self.n_head)
        tables = rope_tables(tokens_BT.shape[1], d_rotated, self.rope_base, tokens_BT.device)
        if places_BT is not None:
            # Shape B1TJ, for all heads.
            tables = (
                tables[0][places_BT][:, None],
                tables[1][places_BT][:, None],
            )
        return self.embedding(tokens_BT), *tables


def weights(model: StableLM) -> Iterator[Weight]:
    """Yield the weights of a model by their names in transformers."""
    yield Weight("embedding", (ARCHITECTURES["stablelm"].embedding,))
    for layer in range(model.n_layer):
        ours, theirs = f"blocks.{layer}.", f"model.layers.{layer}."
        yield Weight(f"{ours}ln_1", (f"{theirs}input_layernorm",), bias=True)
        yield Weight(f"{ours}attn_qkv", tuple(f"{theirs}self_attn.{name}_proj" for name in "qkv"))
        yield Weight(f"{ours}attn_proj", (f"{theirs}self_attn.o_proj",))
        if model.qk_norm:
            for name in "qk":
                norms = f"{theirs}self_attn.{name}_layernorm.norms"
                names = tuple(f"{norms}.{head}" for head in range(model.n_head))
                yield Weight(f"{ours}{name}_norm", names, shared=True)
        yield Weight(f"{ours}ln_2", (f"{theirs}post_attention_layernorm",), bias=True)
        yield Weight(f"{ours}mlp_gate_up", (f"{theirs}mlp.gate_proj", f"{theirs}mlp.up_proj"))
        yield Weight(f"{ours}mlp_proj", (f"{theirs}mlp.down_proj",))
    yield Weight("ln_f", ("model.norm",), bias=True)
    if not model.tied:
        yield Weight("head", ("lm_head",))


def rotary_config(model: StableLM) -> dict[str, Any]:
    """Return the keys of config.json that say how queries and keys are turned.

    transformers 5 reads ``rope_parameters``, transformers 4 the same keys at the top level.
    """
    rope = {"rope_theta": model.rope_base, "partial_rotary_factor": model.rope_fraction}
    return {
        "num_key_value_heads": model.n_head,
        **rope,
        "rope_parameters": {"rope_type": "default", **rope},
    }


FAMILY = Family(
    StableLM,
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
        "qk_norm": "qk_layernorm",
    },
    {
        "architectures": ["StableLmForCausalLM"],
        "hidden_act": "silu",
        "layer_norm_eps": LAYER_NORM_EPS,
        "use_qkv_bias": False,
        "use_parallel_residual": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    rotary_config,
)
