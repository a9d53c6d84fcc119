"""GPUs that can be rented by the hour: what a study takes on each of them, and which of its cells
fit on one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coupled_adam_bench.machine.gpus import GPUS
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import Budget
from coupled_adam_bench.tools.estimate.speed import Speed, Spread, estimated_speed
from coupled_adam_bench.training.memory import largest_micro_batch

# USD for an hour of one GPU without a commitment. The kinds are those on SXM boards, but for the
# L40S; GPUS has their dense peak in bfloat16 and their memory by NVIDIA's data sheets. The prices
# are those of https://www.runpod.io/pricing on 25 September 2026, as
# https://github.com/tgarg01/silybench-data has them.
RENTED = {"H100": 3.49, "H200": 4.59, "A100": 1.59, "L40S": 1.09}
PRICES_OF = "RunPod's Secure Cloud in September 2026"
MEMORY_GB = tuple(sorted({round(GPUS[name].memory / 1e9) for name in RENTED}))
"""The sizes of their memory in GB, for which a plan says whether a cell fits."""


@dataclass(frozen=True)
class Rental:
    """What the cells that are left take on one kind of GPU."""

    gpu: str
    fitting: int
    """The number of cells that fit on one GPU."""
    too_large: tuple[str, ...]
    """The models of the other cells."""
    hours_range: tuple[float, float]
    """Between which GPU hours those of all cells may lie that are still to train, whatever number
    of GPUs trains one."""
    price: float
    """The price of an hour in USD."""

    @property
    def cost_range(self) -> tuple[float, float]:
        """Between which prices the truth may lie."""
        low, high = self.hours_range
        return self.price * low, self.price * high


def rentals(
    cells: Sequence[Cell], left: Sequence[tuple[Cell, float, Spread]], budget: Budget
) -> list[Rental]:
    """Return what is left takes on each kind of GPU, given by part with its hours on the budget's
    kind and their spread.

    The hours of another kind are in the ratio of what is computed for both. The price of the
    budget's kind is that of the budget, if it has one.
    """
    found = []
    for gpu, price in RENTED.items():
        is_own = gpu == budget.gpu
        if is_own and budget.price_per_gpu_hour is not None:
            price = budget.price_per_gpu_hour
        too_large = [cell.model.name for cell in cells if not _fits_on_one(cell, gpu)]
        low = high = 0.0
        for part, hours, spread in left:
            there = _speed(_on(part, gpu))
            hours *= _speed(part).tokens_per_second / there.tokens_per_second
            # What ended runs have measured is certain only on their own kind of GPU.
            used = spread if is_own else there.spread
            low += used.low * hours
            high += used.high * hours
        found.append(
            Rental(
                gpu=gpu,
                fitting=len(cells) - len(too_large),
                too_large=tuple(dict.fromkeys(too_large)),
                hours_range=(low, high),
                price=price,
            )
        )
    return found


def _on(cell: Cell, gpu: str) -> Cell:
    """Return a cell of a study whose budget has another kind of GPU."""
    budget = cell.study.budget.model_copy(update={"gpu": gpu})
    return replace(cell, study=cell.study.model_copy(update={"budget": budget}))


def _speed(cell: Cell) -> Speed:
    return estimated_speed(cell, cell.study.execution)


def _fits_on_one(cell: Cell, gpu: str) -> bool:
    alone = cell.study.execution.model_copy(update={"gpus": 1, "train_processes": None})
    return largest_micro_batch(cell, alone, GPUS[gpu].memory) is not None
