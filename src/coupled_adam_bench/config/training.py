"""Sections of a study: models, optimizers and the recipe of training."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from coupled_adam_bench.config.base import Name, Settings
from coupled_adam_bench.presets import MODEL_PRESETS


class Model(Settings):
    """A GPT-2 of one size: pre-norm, exact GELU, learned positions, no biases, tied embeddings [P][C]."""

    name: Name
    label: str | None = None
    """How tables print it, e.g. ``125M``; without one the parameter count is printed."""
    n_layer: int = Field(gt=0)
    n_head: int = Field(gt=0)
    d_model: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    """Peak learning rate."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.d_model % self.n_head:
            raise ValueError(f"n_head: {self.n_head} does not divide d_model {self.d_model}")
        return self

    def n_params(self, vocab_size: int, seq_len: int) -> int:
        """Return the number of parameters, the tied embedding counted once and positions included."""
        per_layer = 12 * self.d_model**2 + 2 * self.d_model
        return (vocab_size + seq_len) * self.d_model + self.n_layer * per_layer + self.d_model


def _model_from_preset(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in MODEL_PRESETS:
        raise ValueError(f"no such preset; there are {', '.join(MODEL_PRESETS)}; or give name, n_layer, n_head, ...")
    return MODEL_PRESETS[value]


ModelOrPreset = Annotated[
    Model, BeforeValidator(_model_from_preset, json_schema_input_type=Literal[tuple(MODEL_PRESETS)] | Model)
]


class AdamW(Settings):
    """AdamW for the embedding, as for all other parameters: the paper's "Adam"."""

    name: Literal["adamw"]

    @property
    def key(self) -> str:
        """Name in results, ids and tables' keys."""
        return "adamw"

    @property
    def label(self) -> str:
        """Name in tables."""
        return "Adam"


class CoupledAdam(Settings):
    """Coupled Adam for the embedding; ``scale_exponent`` n multiplies the second moment by 2^-n (Sec. 6.1) [C]."""

    name: Literal["coupled_adam"]
    scale_exponent: int = 0

    @property
    def key(self) -> str:
        """Name in results, ids and tables' keys."""
        return "coupled_adam" if self.scale_exponent == 0 else f"coupled_adam_n{self.scale_exponent}"

    @property
    def label(self) -> str:
        """Name in tables."""
        return "Coupled Adam" if self.scale_exponent == 0 else f"Coupled Adam, n = {self.scale_exponent}"


class Sgd(Settings):
    """SGD for the embedding at ``lr_factor`` times the learning rate (Alg. 2) [C]."""

    name: Literal["sgd"]
    lr_factor: float = Field(gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)

    @property
    def key(self) -> str:
        """Name in results, ids and tables' keys."""
        momentum = "" if self.momentum == 0.9 else f"_m{self.momentum:g}"
        return f"sgd_f{self.lr_factor:g}{momentum}"

    @property
    def label(self) -> str:
        """Name in tables."""
        momentum = "" if self.momentum == 0.9 else f", m = {self.momentum:g}"
        return f"SGD, f = {self.lr_factor:g}{momentum}"


def _optimizer_from_name(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


_AnyOptimizer = Annotated[AdamW | CoupledAdam | Sgd, Field(discriminator="name")]
Optimizer = Annotated[
    _AnyOptimizer,
    BeforeValidator(_optimizer_from_name, json_schema_input_type=Literal["adamw", "coupled_adam"] | _AnyOptimizer),
]


class Training(Settings):
    """The recipe that all cells of a study share."""

    seq_len: int = Field(1024, gt=1)
    """[P]"""
    batch_sequences: int = Field(96, gt=0)
    """Sequences of the global batch [P]: 96 x 1024 = 98,304 tokens."""
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
    warmup_steps: int = Field(100, ge=0)
    """[P] Learning rate peak * (t + 1) / (warmup_steps + 1) in step t < warmup_steps."""
    min_lr_ratio: float = Field(0.1, ge=0, le=1)
    """[C] Cosine decay ends at this fraction of the peak."""
    init_std: float = Field(0.02, gt=0)
    """[C] Residual output projections: init_std / sqrt(2 n_layer)."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """``bf16``: autocast over fp32 weights [P][C]."""
