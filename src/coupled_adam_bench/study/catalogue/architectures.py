"""The families of models: what is known of each without building it. Its modules are in
``models/<name>.py``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

ArchitectureName = Literal["gpt2", "stablelm", "modded_nanogpt", "contexts"]
"""Each that is ``in_transformers`` has the name that transformers gives the class that computes the
same, ``model_type`` in its config.json."""


QkNorm = Literal[False, "shared"]
"""How queries and keys are normalized: not, or with one weight for all heads of a layer."""


@dataclass(frozen=True)
class Architecture:
    """A family of decoders: what its settings allow, and what its parameters, memory and disk are
    counted from.

    A layer has four d_model x d_model matrices of attention, and two norms of d_model weights.
    """

    title: str
    """Name and parts, for reports."""
    options: frozenset[str]
    """The fields of ``Model`` that only some families have, as far as this one has them."""
    default_ffn: Callable[[int], int]
    """Returns the hidden width of the MLP where a study gives none, from d_model."""
    mlp_matrices: int
    """Number of d_model x d_ffn matrices in a layer's MLP."""
    learned_positions: bool
    kept: tuple[int, int]
    """What a layer keeps of each token until the backward pass, in the precision of the products:
    so many times d_model and so many times d_ffn numbers."""
    mlp_gradients: int
    """Gradients of d_ffn numbers for each token that the backward pass of the MLP holds at once."""
    biases: tuple[int, int, int]
    """Biases, all 0, that transformers' class has and ours has not: d_model and d_ffn numbers of a
    layer, and d_model numbers behind the last."""
    embedding: str
    """The name of the input embedding in an exported model, without ``.weight``."""
    has_layers: bool = True
    """Whether there are layers, so that the model is a transformer."""

    kept_float32: int = 0
    """So many times d_model numbers in float32 that a layer keeps beside the inputs of its norms,
    as seen on a CPU."""
    in_transformers: bool = True
    """Whether the library transformers has a class that computes the same."""
    outer_norms: int = 1
    """Number of norms outside of layers."""

    @property
    def is_rotary(self) -> bool:
        """Whether positions are pairs of coordinates that are turned."""
        return "rope_base" in self.options


ARCHITECTURES: Mapping[ArchitectureName, Architecture] = {
    "gpt2": Architecture(
        title="GPT-2: LayerNorm, exact GELU, learned positions",
        options=frozenset(),
        default_ffn=lambda d_model: 4 * d_model,
        mlp_matrices=2,
        learned_positions=True,
        # outputs of both norms; queries, keys, values; attention's output | GELU's input and output
        kept=(6, 2),
        mlp_gradients=1,  # of GELU's output
        biases=(7, 1, 1),
        embedding="transformer.wte",
    ),
    "stablelm": Architecture(
        title="StableLM: LayerNorm, SwiGLU, RoPE",
        options=frozenset({"rope_base", "rope_fraction", "qk_norm"}),
        default_ffn=lambda d_model: 256 * -(-(8 * d_model // 3) // 256),
        mlp_matrices=3,
        learned_positions=False,
        # as GPT-2, and rotated queries and keys | the gate before and after SiLU, the factor, the
        # product
        kept=(8, 4),
        mlp_gradients=4,  # of SwiGLU's product, of both its factors, and of the first before SiLU
        biases=(2, 0, 1),
        embedding="model.embed_tokens",
    ),
    "modded_nanogpt": Architecture(
        title="modded-nanogpt: RMSNorm, squared ReLU, RoPE, normalized queries and keys",
        options=frozenset({"rope_base", "rope_fraction"}),
        default_ffn=lambda d_model: 4 * d_model,
        mlp_matrices=2,
        learned_positions=False,
        # outputs of both norms; values; rotated queries and keys; attention's output | ReLU's, its
        # square
        kept=(6, 2),
        # norms before their weights; queries and keys before their norms; attention's output by
        # heads
        kept_float32=5,
        mlp_gradients=3,  # of the square, twice ReLU's output, and their product
        biases=(0, 0, 0),
        embedding="embedding",
        in_transformers=False,
        outer_norms=2,
    ),
    "contexts": Architecture(
        title="Contexts: LayerNorm of a learned vector of the previous token, no layers",
        options=frozenset({"n_contexts"}),
        default_ffn=lambda d_model: 0,  # noqa: ARG005 - there is no MLP
        mlp_matrices=0,
        learned_positions=False,
        kept=(0, 0),
        mlp_gradients=0,
        biases=(0, 0, 0),
        embedding="embedding",
        has_layers=False,
        in_transformers=False,
    ),
}

if missing := set(get_args(ArchitectureName)) - set(ARCHITECTURES):
    raise NotImplementedError(f"ARCHITECTURES has no entry for {', '.join(sorted(missing))}")
