"""The section ``training`` of a study."""

import math
from fractions import Fraction
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from coupled_adam_bench.study.settings.base import (
    MAX_SEQUENCES,
    MAX_STEPS,
    LaterSettings,
)
from coupled_adam_bench.study.settings.optimizers import BetaSettings, SingleOptimizer


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
    matrices of the layers, AdamW for the rest. ``muon_exact`` is Muon as in modded-nanogpt's
    optimizer track: 12 steps of Newton and Schulz that converge, and updates times sqrt(max(1, rows
    / columns))."""
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
    and not over held-out text."""
    data_ranks: int = Field(4, gt=0, le=MAX_SEQUENCES)
    """Number of random streams of ``per_rank``; it does not depend on the number of GPUs that
    train. The authors had 4 [C]."""
    init: Literal["normal", "xavier_linear", "zero_projections"] = "normal"
    """Initial weights. ``normal``: all with ``init_std`` [C]; ``xavier_linear``: those of arXiv
    2601.02031 [C]: linear layers and the head have a variance of 2 / (inputs + outputs) (Glorot and
    Bengio 2010), projections behind attention a standard deviation of 0.02 / sqrt(2 n_layer), and
    an untied embedding of 1 / sqrt(d_model); ``zero_projections``: those of modded-nanogpt:
    the head and the matrices behind attention and MLP are 0, the embedding has
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

    def betas(self, optimizer: SingleOptimizer) -> tuple[float, float]:
        """Return the decay rates of an optimizer's moments: its own if given, else the study's."""
        if not isinstance(optimizer, BetaSettings):
            return self.beta1, self.beta2
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
