"""Section of a study: how the work is done."""

from typing import Literal, Self

from pydantic import Field, model_validator

from coupled_adam_bench.config.base import Settings


class Execution(Settings):
    """How the work is done: nothing here changes a number beyond float error or is part of a cell's id."""

    train_threads: int = Field(1, gt=0)
    """Of each process that trains."""
    evaluation_threads: int = Field(1, gt=0)
    data_threads: int = Field(2, gt=0)
    gpus: int = Field(0, ge=0)
    """GPUs of a training job; an evaluation job takes one of them."""
    train_processes: int | None = Field(None, gt=0)
    """Processes that train a cell together, each on its part of the batch; without it one per GPU, or one."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """``ddp``: a copy of the model in each process; ``fsdp``: weights, gradients and optimizer states in shards."""
    micro_batch_sequences: int | Literal["auto"] | None = None
    """Sequences per forward pass of a process; ``auto``: as many as its memory holds; all of its batch without it."""
    compile: bool = False
    """``torch.compile`` the layers: faster on GPUs, needs a C++ compiler on CPUs and up to a minute at the start."""
    deterministic: bool = False
    """Only kernels that give the same bits again, on GPUs too, where it is slower; a CPU always does."""
    stall_seconds: float = Field(600.0, gt=0)
    """A process of several that is this long behind the others ends the job, which says its rank."""
    evaluation_batch_sequences: int = Field(16, gt=0)
    train_cells_per_job: int = Field(1, gt=0)
    """Cells that one training job takes in turn: more for tiny models, which train as fast as torch starts."""
    evaluation_cells_per_job: int = Field(1, gt=0)
    """Cells that one evaluation job takes: more for tiny models, whose evaluation is shorter than lm-eval's start."""
    log_every: int = Field(10, gt=0)
    """Steps between lines of ``history.jsonl``."""
    checkpoint_every: int = Field(1000, gt=0)
    """Steps between checkpoints."""
    train_mem_mb: int = Field(4000, gt=0)
    train_minutes: int = Field(1440, gt=0)
    evaluation_mem_mb: int = Field(8000, gt=0)
    """lm-eval holds the logits of a batch twice: 8 bytes x evaluation_batch_sequences x seq_len x vocab_size."""
    evaluation_minutes: int = Field(240, gt=0)

    @property
    def processes(self) -> int:
        """Processes that train a cell."""
        return self.train_processes or max(1, self.gpus)

    @property
    def training_threads(self) -> int:
        """Threads of a training job, all its processes together."""
        return self.train_threads * self.processes

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.gpus and self.processes != self.gpus:
            raise ValueError(f"train_processes: {self.processes}, but gpus: {self.gpus}; each GPU takes one process")
        if isinstance(self.micro_batch_sequences, int) and self.micro_batch_sequences < 1:
            raise ValueError(f"micro_batch_sequences: {self.micro_batch_sequences} must be 1 or more, or auto")
        return self
