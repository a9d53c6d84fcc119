"""The sections of a study that change no run: how the work is done, what ``plan`` computes with,
and what is tested."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from coupled_adam_bench.machine.gpus import GPUS
from coupled_adam_bench.study.settings.base import (
    MAX_SEQUENCES,
    MAX_STEPS,
    LaterSettings,
    Settings,
    Term,
    not_bool,
)
from coupled_adam_bench.study.settings.plug_ins import PlugIns

_MAX_THREADS = 1024
"""Largest number of threads, processes or GPUs; it stops a typing error from overloading the
machine."""
_YEAR_MINUTES = 366 * 24 * 60
_LEAST_TRAIN_MINUTES = 4
"""A job of so many minutes is warned after three quarters of them, and SLURM may warn a minute too
soon: after the two minutes that we assume until its first step. A job that is always warned before
it would go back into the queue for ever."""


class Execution(LaterSettings):
    """How the work is done. No setting here changes a number beyond float error or is part of a
    cell's id."""

    later: ClassVar[tuple[str, ...]] = ("measurements",)

    train_threads: int = Field(1, gt=0, le=_MAX_THREADS)
    """CPU threads of each training process."""
    evaluation_threads: int = Field(1, gt=0, le=_MAX_THREADS)
    data_threads: int = Field(2, gt=0, le=_MAX_THREADS)
    gpus: int = Field(0, ge=0, le=_MAX_THREADS)
    """Number of GPUs of a training job, 0 for the CPU; if it is not 0, an evaluation job asks for
    one GPU. Log-likelihoods of downstream tasks are computed on all GPUs that their job sees."""
    train_processes: int | None = Field(None, gt=0, le=_MAX_THREADS)
    """Number of processes that share each batch of a cell; by default one per GPU, or one without
    GPUs."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """``ddp``: each process has a copy of the model; ``fsdp``: weights, gradients and optimizer
    states are sharded."""
    micro_batch_sequences: (
        Annotated[int, Field(gt=0, le=MAX_SEQUENCES)] | Literal["auto"] | None
    ) = None
    """Sequences per forward pass of a process; ``auto``: as many as fit into memory; by default its
    whole batch."""
    compile: bool = False
    """Compile the layers and, on a GPU, the loss with ``torch.compile``. This is faster on GPUs,
    takes up to a minute at the start and needs a C++ compiler on CPUs."""
    deterministic: bool = False
    """Use only deterministic kernels on GPUs, which are slower; runs on a CPU are always
    deterministic."""
    evaluation_batch_sequences: int = Field(16, gt=0, le=MAX_SEQUENCES)
    """Sequences of ``seq_len`` tokens in a forward pass of an evaluation. Log-likelihoods of
    downstream tasks take as many tokens in texts of any length, on a CPU at most 2048."""
    hub_minutes: float = Field(30.0, ge=0, le=7 * 24 * 60)
    """Minutes that a job waits for a Hugging Face hub that cannot be reached, is overloaded or asks
    to wait, before it fails; every file that arrives starts them anew."""
    train_cells_per_job: int = Field(1, gt=0, le=10**6)
    """Cells that one training job trains one after the other; raise it for tiny models, for which
    importing torch takes as long as training."""
    evaluation_cells_per_job: int = Field(1, gt=0, le=10**6)
    """Cells that one evaluation job evaluates; raise it for tiny models, for which lm-eval's start
    takes longer than the evaluation."""
    log_every: int = Field(10, gt=0, le=MAX_STEPS)
    """Steps between lines of ``history.jsonl``."""
    eval_every: int | None = Field(1000, gt=0, le=MAX_STEPS)
    """Steps between measurements of the validation loss, which the last step has too; ``null``:
    none. One costs about a third of a training step."""
    eval_sequences: int | None = Field(None, gt=0, le=MAX_SEQUENCES)
    """Number of windows of the validation split that are measured, always the same ones; by default
    ``training.batch_sequences``."""
    geometry_per_decade: int = Field(0, ge=0, le=1000)
    """Measurements of the embedding's geometry, and of the steps of its rows, in each tenfold of
    steps: 4 for the steps 1, 2, 3, 6, 10, 18 and so on; 0: none. All processes wait for each, which
    takes seconds on the CPU for a large matrix."""
    measurements: PlugIns = ()
    """Measurements along training of the study's own (docs/plugins.md)."""
    checkpoint_every: int = Field(1000, gt=0, le=MAX_STEPS)
    """Steps between checkpoints."""
    track_seconds: float | None = Field(60.0, ge=1, le=24 * 3600)
    """Seconds between imports into MLflow while cells train; ``null``: only at the end. A study
    that is over sooner has none. An import takes at most a twentieth of one core, at the lowest
    priority."""
    train_mem_mb: int | None = Field(None, gt=0, le=10**9)
    """Memory of a training job on its machine, not on the GPU; by default computed from the cell,
    at least 4000. After each attempt that was killed without a word, the next asks for half as much
    again."""
    train_minutes: int | None = Field(None, ge=_LEAST_TRAIN_MINUTES, le=_YEAR_MINUTES)
    """Time limit of a training job, at least 4, of which the start of Python may take half. Before
    it, the job goes back into the queue and then goes on. By default computed from the cell, 60 to
    1440, and half as much again after each attempt that failed at it. It is also the most that
    preparing the data asks for; that is computed from the size of the text."""
    evaluation_mem_mb: int = Field(8000, gt=0, le=10**9)
    """Memory of an evaluation job; twice as much after an attempt that was killed without a word,
    and so on."""
    evaluation_minutes: int = Field(240, gt=0, le=_YEAR_MINUTES)
    """Time limit of an evaluation job; twice as much after an attempt that failed at it, and so on.
    Stages that share a job of a cluster share it."""

    @property
    def processes(self) -> int:
        """Number of processes that train a cell."""
        return self.train_processes or max(1, self.gpus)

    @property
    def training_threads(self) -> int:
        """CPU threads that train a cell, summed over its processes."""
        return self.train_threads * self.processes

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.gpus and self.processes != self.gpus:
            raise ValueError(
                f"train_processes: {self.processes}, but gpus: {self.gpus}; each GPU takes one"
                " process"
            )
        return self


class Budget(Settings):
    """Machines and prices for ``plan``. No setting here changes a number, and none starts or stops
    a job.

    All studies of a results folder have the same budget.
    """

    gpu: Literal[tuple(GPUS)] = "H200"  # type: ignore[valid-type]
    """Kind of GPU for which time is estimated until runs have measured it."""
    gpus: int = Field(8, gt=0, le=10**6)
    """Number of GPUs that work at the same time, for the wall time; what one cell takes is
    ``execution.gpus``."""
    mfu: float | None = Field(None, gt=0, le=1)
    """Share of the GPU's peak that training reaches; by default an estimate for each model, which
    docs/gpu.md explains. Finished runs replace both."""
    price_per_gpu_hour: float | None = Field(None, ge=0, le=10**6)
    """Price of a GPU for an hour in USD; without one there is no cost. It is that of one kind of
    card, so ``gpu`` must stand beside it."""

    @model_validator(mode="after")
    def _a_price_has_its_card(self) -> Self:
        price = self.price_per_gpu_hour
        if price is not None and "gpu" not in self.model_fields_set:
            raise ValueError(
                f"price_per_gpu_hour: {price:g} is the price of one kind of card, and the hours"
                " differ by the card; name it with budget.gpu, one of " + ", ".join(GPUS)
            )
        return self


BoldRule = Literal["paper", "paired", "holm"]


class StatisticsSettings(LaterSettings):
    """How optimizers are compared. No setting here changes a run or what is measured in it.

    All studies of a results folder have the same.
    """

    later: ClassVar[tuple[str, ...]] = ("files", "figures")

    bold: BoldRule = "paper"
    """What decides whether a value is bold in tables with a test. ``paper``: Student's t-test with
    pooled variance, p < 0.05 [P]; ``paired``: the t-test of the differences between runs of the
    same seed; ``holm``: this paired test, two-sided, after Holm's correction for all pairs of
    optimizers of the table."""
    margins: dict[Term, Annotated[float, Field(gt=0), BeforeValidator(not_bool)]] = Field({})
    """By metric, in its unit, the difference that does not matter, such as ``loss: 0.01``. Two
    optimizers are then tested for being equivalent: for a difference within it. Metrics that are
    not named are not tested so."""
    files: PlugIns = ()
    """Statistics of the study's own: each a CSV file with a section of the report
    (docs/plugins.md)."""
    figures: PlugIns = ()
    """Figures of the study's own (docs/plugins.md)."""
