"""The section ``budget`` of a study: what ``plan`` computes time and cost with."""

from typing import Annotated, Literal

from pydantic import Field

from coupled_adam_bench.machine.gpus import GPUS
from coupled_adam_bench.study.config.base import Label, Settings


class Budget(Settings):
    """Machines and prices for ``plan``. No setting here changes a number, and none starts or stops a job.

    All studies of a results folder have the same budget.
    """

    gpu: Literal[tuple(GPUS)] = "H200"  # type: ignore[valid-type]
    """Kind of GPU for which time is estimated until runs have measured it."""
    gpus: int = Field(8, gt=0, le=10**6)
    """Number of GPUs that work at the same time, for the wall time; what one cell takes is ``execution.gpus``."""
    mfu: float | None = Field(None, gt=0, le=1)
    """Share of the GPU's peak that training reaches; by default an estimate for each model, which no GPU has measured.
    Finished runs replace both."""
    price_per_gpu_hour: float | None = Field(None, ge=0, le=10**6)
    """Price of a GPU for an hour; without one there is no cost."""
    currency: Annotated[Label, Field(max_length=10)] = "USD"
