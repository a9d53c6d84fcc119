"""Sections of a study: models and the recipe of training."""

import math
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from coupled_adam_bench.config.base import LaterSettings, Name, Settings
from coupled_adam_bench.config.optimizers import Optimizer
from coupled_adam_bench.presets import MODEL_PRESETS


class Model(Settings):
    """A decoder of one size, pre-norm with LayerNorm and without biases [P][C]."""

    name: Name
    label: str | None = None
    """How tables print it, e.g. ``125M``; without one the parameter count is printed."""
    architecture: Literal["gpt2", "stablelm"] = "gpt2"
    """``gpt2``: exact GELU and learned positions, the paper's small scale; ``stablelm``: SwiGLU and RoPE, its large
    scale [P]; both under the name of the transformers class that computes the same."""
    n_layer: int = Field(gt=0)
    n_head: int = Field(gt=0)
    d_model: int = Field(gt=0)
    ffn_dim: int | None = Field(None, gt=0)
    """Hidden width of the MLP; without it 4 d_model for ``gpt2`` [C], 256 ceil(floor(8 d_model / 3) / 256) for
    ``stablelm`` [I]."""
    rope_base: float = Field(10_000.0, gt=1)
    """Of ``stablelm`` [I]."""
    tied: bool = True
    """The head's weight is the embedding's [P]; untied, the embedding's optimizer takes both matrices."""
    learning_rate: float = Field(gt=0)
    """Peak learning rate."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.d_model % self.n_head:
            raise ValueError(f"n_head: {self.n_head} does not divide d_model {self.d_model}")
        if self.architecture == "stablelm" and self.d_model // self.n_head % 2:
            raise ValueError(f"n_head: RoPE turns pairs, but d_model / n_head = {self.d_model // self.n_head} is odd")
        if self.architecture == "gpt2" and self.rope_base != 10_000.0:
            raise ValueError("rope_base: gpt2 has learned positions; rope_base is for architecture 'stablelm'")
        return self

    @property
    def d_ffn(self) -> int:
        """Hidden width of the MLP."""
        if self.ffn_dim is not None:
            return self.ffn_dim
        return 4 * self.d_model if self.architecture == "gpt2" else 256 * -(-(8 * self.d_model // 3) // 256)

    def n_positions(self, seq_len: int) -> int:
        """Return the number of position parameters."""
        return seq_len * self.d_model if self.architecture == "gpt2" else 0

    def n_params(self, vocab_size: int, seq_len: int) -> int:
        """Return the number of parameters, a tied embedding counted once and positions included."""
        mlp_matrices = 2 if self.architecture == "gpt2" else 3
        per_layer = 4 * self.d_model**2 + mlp_matrices * self.d_model * self.d_ffn + 2 * self.d_model
        embeddings = vocab_size * self.d_model * (1 if self.tied else 2)
        return embeddings + self.n_positions(seq_len) + self.n_layer * per_layer + self.d_model

    def flops_per_token(self, vocab_size: int, seq_len: int) -> int:
        """Return the model FLOPs of training on one token: 6 a parameter, positions left out, and attention's own.

        6 N + 12 n_layer d_model seq_len, as in the PaLM paper's appendix B; the embedding counts as the head's product.
        """
        n_params = self.n_params(vocab_size, seq_len) - self.n_positions(seq_len)
        lookup = 0 if self.tied else vocab_size * self.d_model
        return 6 * (n_params - lookup) + 12 * self.n_layer * self.d_model * seq_len


def _model_from_preset(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in MODEL_PRESETS:
        raise ValueError(f"no such preset; there are {', '.join(MODEL_PRESETS)}; or give name, n_layer, n_head, ...")
    return MODEL_PRESETS[value]


ModelOrPreset = Annotated[
    Model, BeforeValidator(_model_from_preset, json_schema_input_type=Literal[tuple(MODEL_PRESETS)] | Model)
]


def _share(fraction: float, steps: int) -> int:
    return math.ceil(Fraction(str(fraction)) * steps)  # as written: 0.07 x 100 is 7.000000000000001 in floats, so 8


class Training(LaterSettings):
    """The recipe that all cells of a study share."""

    later: ClassVar[tuple[str, ...]] = ("core_optimizer",)

    seq_len: int = Field(1024, gt=1)
    """[P]"""
    batch_sequences: int = Field(96, gt=0)
    """Sequences of the global batch [P]: 96 x 1024 = 98,304 tokens."""
    core_optimizer: Literal["adamw", "muon"] = "adamw"
    """Of all but the embedding [P]; ``muon``: torch.optim.Muon for the matrices of the layers, AdamW for the rest."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """[P]"""
    beta2: float = Field(0.95, ge=0, lt=1)
    """[P]"""
    eps: float = Field(1e-8, gt=0)
    """[P]"""
    weight_decay: float = Field(0.1, ge=0)
    """[P] Of the matrices; norms and the embedding have their own."""
    embedding_weight_decay: float = Field(0.0, ge=0)
    """[C] 0 for the tied embedding; the text of the paper says 0.1."""
    grad_clip: float = Field(1.0, gt=0)
    """[P] Global 2-norm of the gradient of all parameters."""
    schedule: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """Learning rate after the warmup; ``wsd``: constant, then a linear decay over the last ``decay_fraction``, so that
    one stable run feeds the cells of several D."""
    warmup_steps: int = Field(100, ge=0)
    """[P] Steps of linear warmup."""
    warmup_fraction: float | None = Field(None, gt=0, lt=1)
    """In place of ``warmup_steps``: a fraction of the cell's steps, rounded up; 0.01 at the large scale [P]."""
    warmup_from: Literal["zero", "first_step"] = "first_step"
    """Learning rate of step t (from 0) in the warmup: ``zero``: peak t / warmup, so the first step is lost [C];
    ``first_step``: peak (t + 1) / (warmup + 1)."""
    min_lr_ratio: float = Field(0.1, ge=0, le=1)
    """[C] The decay ends at this fraction of the peak."""
    decay_fraction: float = Field(0.2, gt=0, le=1)
    """Of ``wsd``: fraction of a cell's steps in which the learning rate falls."""
    data_order: Literal["with_replacement", "shuffled", "per_rank"] = "with_replacement"
    """Which windows a step draws: ``with_replacement``: uniform offsets; ``shuffled``: windows without overlap, each
    once an epoch; ``per_rank``: the authors' offsets, a generator seeded seed + r for each of ``data_ranks`` [C]."""
    data_ranks: int = Field(4, gt=0)
    """Of ``per_rank``: streams, whatever number of GPUs trains [C]: 4."""
    init_std: float = Field(0.02, gt=0)
    """[C] Residual output projections: init_std / sqrt(2 n_layer)."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """``bf16``: autocast over fp32 weights [P][C]."""

    def warmup(self, steps: int) -> int:
        """Return the warmup of a run of ``steps``, in steps."""
        return self.warmup_steps if self.warmup_fraction is None else _share(self.warmup_fraction, steps)

    def embedding_decay(self, optimizer: Optimizer) -> float:
        """Return the weight decay of the embedding under ``optimizer``, whose own comes before the recipe's."""
        return self.embedding_weight_decay if optimizer.weight_decay is None else optimizer.weight_decay

    def decay_start(self, steps: int) -> int:
        """Return the first step of ``wsd`` whose learning rate is below the peak, or ``steps`` without one.

        The decay goes from the step before it and never begins inside the warmup. What comes before depends on no D.
        """
        return min(steps, 1 + max(self.warmup(steps), steps - _share(self.decay_fraction, steps)))

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.schedule == "wsd" and self.warmup_fraction is not None:
            raise ValueError("warmup_fraction: schedule 'wsd' shares one start between several D; use warmup_steps")
        if self.data_order == "per_rank" and self.batch_sequences % self.data_ranks:
            raise ValueError(f"data_ranks: {self.data_ranks} does not divide batch_sequences {self.batch_sequences}")
        return self
