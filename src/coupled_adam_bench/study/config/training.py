"""The sections ``models`` and ``training`` of a study."""

import math
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from coupled_adam_bench.study.architectures import (
    ARCHITECTURES,
    Architecture,
    ArchitectureName,
    QkNorm,
)
from coupled_adam_bench.study.config.base import (
    MAX_SEQUENCES,
    MAX_STEPS,
    Label,
    LaterSettings,
    Name,
)
from coupled_adam_bench.study.config.optimizers import BetaSettings, SingleOptimizer
from coupled_adam_bench.study.presets import MODEL_PRESETS


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
    track (docs/training.md). ``contexts``: no transformer, but its head alone, on a learned hidden
    state for each of ``n_contexts`` previous tokens (docs/contexts.md)."""
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


def _share(fraction: float, steps: int) -> int:
    # Exact for the decimal as written: in floats, 0.07 x 100 is 7.000000000000001, which would
    # round up to 8.
    return math.ceil(Fraction(str(fraction)) * steps)


class Training(LaterSettings):
    """The training settings that all cells of a study share."""

    later: ClassVar[tuple[str, ...]] = (
        "core_optimizer",
        "init",
        "min_learning_rate",
        "norm_lr_factor",
    )

    seq_len: int = Field(1024, gt=1, le=2**24)
    """Context length in tokens [P]."""
    batch_sequences: int = Field(96, gt=0, le=MAX_SEQUENCES)
    """Number of sequences in a global batch [P]: 96 x 1024 = 98,304 tokens."""
    core_optimizer: Literal["adamw", "muon", "muon_exact"] = "adamw"
    """Optimizer of all parameters but the embedding [P]; ``muon``: torch.optim.Muon for the
    matrices of the layers, AdamW for the rest. ``muon_exact`` is Muon as modded-nanogpt's optimizer
    track has it (docs/training.md): 12 steps of Newton and Schulz that converge, and updates times
    sqrt(max(1, rows / columns))."""
    norm_lr_factor: float = Field(1.0, gt=0, le=1e40)
    """Factor that multiplies the model's learning rate for the weights of norms."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay rate of the first moment [P]."""
    beta2: float = Field(0.95, ge=0, lt=1)
    """Decay rate of the second moment [P]."""
    eps: float = Field(1e-8, ge=1e-30, le=1)
    """Term that is added to the denominator of the update [P]."""
    weight_decay: float = Field(0.1, ge=0, le=1e6)
    """Weight decay of the matrices [P]. Norms do not decay, and the embedding has a setting of its
    own."""
    embedding_weight_decay: float = Field(0.0, ge=0, le=1e6)
    """Weight decay of the embedding: 0 in the authors' code [C], 0.1 in the text of the paper."""
    grad_clip: float = Field(1.0, gt=0, le=1e30)
    """Largest global 2-norm of the gradient of all parameters [P]."""
    schedule: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """Learning rate after the warmup. ``wsd`` is constant, then decays linearly over the last
    ``decay_fraction``, so that the cells of several D can share one stable run."""
    warmup_steps: int = Field(100, ge=0, le=MAX_STEPS)
    """Number of steps of linear warmup [P]."""
    warmup_fraction: float | None = Field(None, gt=0, lt=1)
    """Fraction of the cell's steps, rounded up, that replaces ``warmup_steps``; 0.01 at the large
    scale [P]."""
    warmup_from: Literal["zero", "first_step"] = "first_step"
    """Learning rate of warmup step t, counted from 0. ``zero``: peak t / warmup, so the first step
    changes nothing [C]; ``first_step``: peak (t + 1) / (warmup + 1)."""
    min_lr_ratio: float = Field(0.1, ge=0, le=1)
    """Fraction of the peak learning rate at which the decay ends [C]."""
    min_learning_rate: float | None = Field(None, ge=0, le=1e40)
    """Learning rate at which the decay ends whatever its peak, in place of ``min_lr_ratio``: 1e-5
    in arXiv 2601.02031 [C]. A lower peak does not decay. An embedding whose rate is f times the
    model's ends at f times this."""
    decay_fraction: float = Field(0.2, gt=0, le=1)
    """Fraction of a cell's steps over which ``wsd`` lowers the learning rate, rounded up. The first
    of these steps is at the peak, so there must be two."""
    data_order: Literal["with_replacement", "shuffled", "per_rank", "sequential", "pairs"] = (
        "with_replacement"
    )
    """Text that a step draws, in windows. ``with_replacement``: uniform offsets; ``shuffled``:
    windows without overlap, each once per epoch; ``per_rank``: the authors' offsets, rank r of
    ``data_ranks`` drawing with the seed seed + r [C]; ``sequential``: windows without overlap as
    they lie in the text, the same for all seeds. ``pairs``: no windows, but each token with the one
    before it, drawn on its own, uniformly with replacement. The pairs of the split train are then
    the source, so there are no passes over a text, and a loss is the exact mean over all of them,
    and not over held-out text (docs/contexts.md)."""
    data_ranks: int = Field(4, gt=0, le=MAX_SEQUENCES)
    """Number of random streams of ``per_rank``; it does not depend on the number of GPUs that
    train. The authors had 4 [C]."""
    init: Literal["normal", "xavier_linear", "zero_projections"] = "normal"
    """Initial weights. ``normal``: all with ``init_std`` [C]; ``xavier_linear``: those of arXiv
    2601.02031 [C]: linear layers and the head have a variance of 2 / (inputs + outputs) (Glorot and
    Bengio 2010), projections behind attention a standard deviation of 0.02 / sqrt(2 n_layer), and
    an untied embedding of 1 / sqrt(d_model); ``zero_projections``: those of modded-nanogpt
    (docs/training.md): the head and the matrices behind attention and MLP are 0, the embedding has
    1, and the rest sqrt(0.33 / inputs)."""
    init_std: float = Field(0.02, gt=0, le=1e6)
    """Standard deviation of the initial weights [C]; residual output projections have init_std /
    sqrt(2 n_layer). With another ``init`` it is not used."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """Precision of training; ``bf16`` is autocast over fp32 weights [P][C]."""

    def held_out(self, split: str) -> str:
        """Return the split on which a loss of ``split`` is measured: of ``pairs`` it is their
        source, train."""
        return "train" if self.data_order == "pairs" else split

    def warmup(self, steps: int) -> int:
        """Return the number of warmup steps in a run of ``steps``."""
        return (
            self.warmup_steps
            if self.warmup_fraction is None
            else _share(self.warmup_fraction, steps)
        )

    def decay(self, steps: int) -> int:
        """Return the number of decay steps of ``wsd`` in a run of ``steps``; 0 for other
        schedules."""
        return _share(self.decay_fraction, steps) if self.schedule == "wsd" else 0

    def embedding_decay(self, optimizer: SingleOptimizer) -> float:
        """Return the weight decay of an optimizer's matrices: its own if given, else the
        study's."""
        own = optimizer.weight_decay
        return self.embedding_weight_decay if own is None else own

    def betas(self, optimizer: BetaSettings) -> tuple[float, float]:
        """Return the decay rates of an optimizer's moments: its own if given, else the study's."""
        beta1 = self.beta1 if optimizer.beta1 is None else optimizer.beta1
        return beta1, self.beta2 if optimizer.beta2 is None else optimizer.beta2

    def final_lr_ratio(self, learning_rate: float) -> float:
        """Return the fraction of a peak ``learning_rate`` at which the decay ends."""
        return (
            self.min_lr_ratio
            if self.min_learning_rate is None
            else min(1.0, self.min_learning_rate / learning_rate)
        )

    def decay_start(self, steps: int) -> int:
        """Return the first step of ``wsd`` whose learning rate is below the peak, or ``steps`` if
        there is none.

        The step before it has the peak learning rate and never lies in the warmup. All earlier
        steps are the same for every D.
        """
        return min(steps, 1 + max(self.warmup(steps), steps - self.decay(steps)))

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.schedule == "wsd" and self.warmup_fraction is not None:
            raise ValueError(
                "warmup_fraction: schedule 'wsd' shares one start between several D; use"
                " warmup_steps"
            )
        if self.data_order == "per_rank" and self.batch_sequences % self.data_ranks:
            raise ValueError(
                f"data_ranks: {self.data_ranks} does not divide batch_sequences"
                f" {self.batch_sequences}"
            )
        return self
