"""The section ``models`` of a study."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from coupled_adam_bench.study.catalogue.architectures import (
    ARCHITECTURES,
    Architecture,
    ArchitectureName,
    QkNorm,
)
from coupled_adam_bench.study.catalogue.presets import MODEL_PRESETS
from coupled_adam_bench.study.settings.base import (
    Label,
    LaterSettings,
    Name,
)


class Model(LaterSettings):
    """A decoder of one size, pre-norm with LayerNorm and without biases [P][C]."""

    later: ClassVar[tuple[str, ...]] = ("rope_fraction", "qk_norm", "n_contexts")

    name: Name
    label: Label | None = None
    """Name in tables, e.g. ``125M``; by default the parameter count."""
    architecture: ArchitectureName = "gpt2"
    """``gpt2``: exact GELU and learned positions, the paper's small scale; ``stablelm``: SwiGLU and
    RoPE, its large scale [P]. Both have the name of the transformers class that computes the same.
    ``modded_nanogpt``: RMSNorm, squared ReLU and RoPE, the model of modded-nanogpt's optimizer
    track. ``contexts``: no transformer, but only its head, on a learned hidden state for each of
    ``n_contexts`` previous tokens."""
    n_layer: int = Field(0, ge=0, le=10_000)
    """Number of layers; every architecture but ``contexts`` needs it."""
    n_head: int = Field(0, ge=0, le=2**16)
    """Number of heads of a layer; every architecture but ``contexts`` needs it."""
    d_model: int = Field(gt=0, le=2**20)
    ffn_dim: int | None = Field(None, gt=0, le=2**24)
    """Hidden width of the MLP; by default 4 d_model for ``gpt2`` [C] and ``modded_nanogpt``, and
    for ``stablelm`` 256 ceil(floor(8 d_model / 3) / 256) [I]."""
    rope_base: float = Field(10_000.0, gt=1, le=1e12)
    """Base of the rotary frequencies of ``stablelm`` [I] and ``modded_nanogpt``."""
    rope_fraction: float = Field(1.0, gt=0, le=1)
    """Share of each head's coordinates that are rotated: the first ones. arXiv 2601.02031 has 0.5
    [C]."""
    qk_norm: QkNorm = False
    """``shared``: ``stablelm`` normalizes the queries and the keys of each head before they are
    rotated (Henry et al. 2020, arXiv 2010.04245), with one weight for all heads of a layer, as
    arXiv 2601.02031 does [C]."""
    n_contexts: int | None = Field(None, ge=4, le=2**16, multiple_of=4)
    """Number of hidden states of ``contexts``. The most frequent tokens of the training text have
    three quarters of them, one each; all other tokens share the rest in turn."""
    tied: bool = True
    """Whether the head shares the embedding's matrix [P]; if not, it has the embedding's optimizer,
    or its own. With ``contexts`` the only matrix is the head: tied, the hidden states are made of
    its rows, and else of vectors of their own."""
    learning_rate: float = Field(gt=0, le=1e40)
    """Peak learning rate; one at which the run diverges is allowed, and divergence is a result."""

    @model_validator(mode="after")
    def _has_its_sizes(self) -> Self:
        given = {field: getattr(self, field) for field in ("n_layer", "n_head")}
        if self.family.has_layers:
            for field in (field for field, value in given.items() if not value):
                raise ValueError(
                    f"{field}: missing; architecture {self.architecture} needs at least 1"
                )
        elif self.n_contexts is None:
            raise ValueError(
                f"n_contexts: missing; architecture {self.architecture} needs a multiple of 4, such"
                " as 64"
            )
        else:
            for field in (
                field for field, value in (given | {"ffn_dim": self.ffn_dim}).items() if value
            ):
                raise ValueError(
                    f"{field}: architecture {self.architecture} has no layers; leave it out"
                )
        return self

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.n_head and self.d_model % self.n_head:
            raise ValueError(f"n_head: {self.n_head} does not divide d_model {self.d_model}")
        if self.family.is_rotary:
            turned = self.rope_fraction * self.d_model / self.n_head
            if turned % 2:
                raise ValueError(
                    f"n_head: RoPE turns pairs, but rope_fraction x d_model / n_head = {turned:g}"
                    " is not even"
                )
        # An option that the architecture lacks would be ignored in silence if a study set it.
        options = set().union(*(family.options for family in ARCHITECTURES.values()))
        for field in sorted(options - self.family.options):
            if getattr(self, field) != type(self).model_fields[field].default:
                others = " or ".join(
                    repr(name) for name, family in ARCHITECTURES.items() if field in family.options
                )
                raise ValueError(
                    f"{field}: {self.architecture} has none; {field} is for architecture {others}"
                )
        return self

    @property
    def family(self) -> Architecture:
        """What is known of the architecture."""
        return ARCHITECTURES[self.architecture]

    @property
    def d_ffn(self) -> int:
        """Hidden width of the MLP."""
        return self.family.default_ffn(self.d_model) if self.ffn_dim is None else self.ffn_dim

    @property
    def has_own_head(self) -> bool:
        """Whether the head has a matrix of its own, beside that of the embedding."""
        return self.family.has_layers and not self.tied

    @property
    def norm_params_per_layer(self) -> int:
        """Number of weights in a layer's norms: two of ``d_model``, and with ``qk_norm`` two of a
        head's width."""
        return 2 * self.d_model + (2 * self.d_model // self.n_head if self.qk_norm else 0)

    @property
    def matrix_params(self) -> int:
        """Number of parameters in the matrices of the layers."""
        return self.n_layer * (
            4 * self.d_model**2 + self.family.mlp_matrices * self.d_model * self.d_ffn
        )

    def n_positions(self, seq_len: int) -> int:
        """Return the number of position parameters."""
        return seq_len * self.d_model if self.family.learned_positions else 0

    def n_params(self, vocab_size: int, seq_len: int) -> int:
        """Return the number of parameters, including positions; a tied embedding counts once."""
        norms = self.n_layer * self.norm_params_per_layer + self.family.outer_norms * self.d_model
        embeddings = vocab_size * self.d_model * (2 if self.has_own_head else 1)
        contexts = 0
        if self.n_contexts is not None:
            n_vectors = self.d_model if self.tied else self.n_contexts  # tied, a map of the rows
            contexts = self.d_model * n_vectors
        return embeddings + contexts + self.n_positions(seq_len) + self.matrix_params + norms

    def flops_per_token(self, vocab_size: int, seq_len: int) -> int:
        """Return the model FLOPs of training on one token: 6 N + 12 n_layer d_model seq_len (PaLM,
        appendix B).

        N counts the parameters that are multiplied: the head is included, but not the lookups of
        tokens and positions.
        """
        n_params = self.n_params(vocab_size, seq_len) - self.n_positions(seq_len)
        lookup = vocab_size * self.d_model if self.has_own_head else 0
        return 6 * (n_params - lookup) + 12 * self.n_layer * self.d_model * seq_len

    def flops_per_step(self, vocab_size: int, seq_len: int, batch_sequences: int) -> int:
        """Return the model FLOPs of a step; those of ``contexts`` do not depend on the batch."""
        if self.n_contexts is not None:
            return 6 * self.n_contexts * vocab_size * self.d_model
        return self.flops_per_token(vocab_size, seq_len) * seq_len * batch_sequences


def _model_from_preset(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in MODEL_PRESETS:
        raise ValueError(
            f"no such preset; there are {', '.join(MODEL_PRESETS)}; or give name, n_layer,"
            " n_head, ..."
        )
    return MODEL_PRESETS[value]


ModelOrPreset = Annotated[
    Model,
    BeforeValidator(
        _model_from_preset, json_schema_input_type=Literal[tuple(MODEL_PRESETS)] | Model
    ),
]
