"""GPT-2 as the paper's small scale trains it: exact GELU and learned positions [P][C].

Shapes: B sequences, T tokens, D = d_model.
"""

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn import functional as F

from coupled_adam_bench.models.base import (
    LAYER_NORM_EPS,
    Family,
    LanguageModel,
    TransformerBlock,
    Weight,
)
from coupled_adam_bench.study.catalogue.architectures import ARCHITECTURES


class GPT2Block(TransformerBlock):
    """A layer with an MLP of two matrices and GELU."""

    def __init__(self, d_model: int, n_head: int, d_ffn: int) -> None:
        super().__init__(d_model, n_head, d_ffn)
        self.mlp_fc = nn.Linear(d_model, d_ffn, bias=False)
        self.mlp_proj = nn.Linear(d_ffn, d_model, bias=False)

    def mlp(self, x_BTD: Tensor) -> Tensor:
        """Return ``mlp_proj(gelu(mlp_fc(x)))``, shape BTD."""
        return self.mlp_proj(F.gelu(self.mlp_fc(x_BTD)))  # type: ignore[no-any-return]


class GPT2(LanguageModel):
    """GPT-2: positions are learned and added to the embedding."""

    block_type = GPT2Block
    learned_positions = True

    def inputs(self, tokens_BT: Tensor, places_BT: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the sum of the embeddings of tokens and positions, shape BTD."""
        positions = (
            self.positions.weight[: tokens_BT.shape[1]]
            if places_BT is None
            else self.positions(places_BT)
        )
        return (self.embedding(tokens_BT) + positions,)


def weights(model: LanguageModel) -> Iterator[Weight]:
    """Yield the weights of a model by their names in transformers."""
    yield Weight("embedding", (ARCHITECTURES["gpt2"].embedding,))
    yield Weight("positions", ("transformer.wpe",))
    for layer in range(model.n_layer):
        ours, theirs = f"blocks.{layer}.", f"transformer.h.{layer}."
        for norm in ("ln_1", "ln_2"):
            yield Weight(ours + norm, (theirs + norm,), bias=True)
        for name, their_name in (
            ("attn_qkv", "attn.c_attn"),
            ("attn_proj", "attn.c_proj"),
            ("mlp_fc", "mlp.c_fc"),
            ("mlp_proj", "mlp.c_proj"),
        ):
            yield Weight(ours + name, (theirs + their_name,), transposed=True, bias=True)
    yield Weight("ln_f", ("transformer.ln_f",), bias=True)
    if not model.tied:
        yield Weight("head", ("lm_head",))


FAMILY = Family(
    GPT2,
    weights,
    {
        "vocab_size": "vocab_size",
        "seq_len": "n_positions",
        "n_layer": "n_layer",
        "n_head": "n_head",
        "d_model": "n_embd",
        "d_ffn": "n_inner",
        "tied": "tie_word_embeddings",
    },
    {
        "architectures": ["GPT2LMHeadModel"],
        "activation_function": "gelu",  # exact GELU; GPT-2's own is the tanh approximation
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "layer_norm_epsilon": LAYER_NORM_EPS,
    },
)
