"""The tables of an estimate: what training takes, its memory, and GPUs to rent."""

from collections.abc import Sequence
from statistics import median

from coupled_adam_bench.machine.gpus import GPUS
from coupled_adam_bench.tools.estimate.cell import EstimateRow
from coupled_adam_bench.tools.estimate.quantities import UNKNOWN, hours, size, span
from coupled_adam_bench.tools.estimate.rental import MEMORY_GB, Rental
from coupled_adam_bench.tools.estimate.study import Estimate


def _sum_span(ranges: Sequence[tuple[float, float]]) -> str:
    lows, highs = zip(*ranges, strict=True)
    return span(sum(lows), sum(highs))


def training_table(estimate: Estimate) -> list[list[str]]:
    """Return the table of what training takes, by study, model and number of tokens, the header
    first."""
    unit = "GPU" if estimate.on_gpus else "CPU"
    header = [
        "study",
        "model",
        "D",
        "cells",
        "FLOPs each",
        unit + "s",
        "MFU",
        "basis",
        "time each",
        f"{unit} h",
    ]
    return [[*header, "done", "took each"], *(_training_row(row) for row in estimate.rows())]


def _training_row(row: EstimateRow) -> list[str]:
    first, execution = row.first, row.first.cell.study.execution
    mfu = UNKNOWN
    # A processor's peak is not known, so a study without GPUs has no share of it.
    if execution.gpus:
        rate = first.part.flops / first.seconds / first.processors
        mfu = f"{100 * rate / GPUS[first.cell.study.budget.gpu].peak_flops:.0f} %"
    tokens = first.cell.tokens_label or UNKNOWN
    if first.tunes:
        tokens += " (tuning)"
    taken = hours(median(row.seconds_taken)) if row.seconds_taken else UNKNOWN
    return [
        first.cell.study.name,
        first.cell.model.name,
        tokens,
        str(len(row.cells)),
        f"{first.cell.flops:.2e}",
        str(first.processors),
        mfu,
        first.source,
        hours(first.seconds),
        _sum_span([estimate.hours_range for estimate in row.cells]),
        str(row.n_done),
        taken,
    ]


def memory_table(estimate: Estimate) -> list[list[str]]:
    """Return the table of what a process and a job take, by study and model, the header first."""
    sizes = MEMORY_GB if estimate.on_gpus else ()
    header = [
        "study",
        "model",
        "weights",
        "gradients",
        "optimizer",
        "activations",
        "loss",
        "at",
        "peak",
    ]
    header += [f"{size} GB" for size in sizes] + ["job: memory", "limit"]
    rows: dict[tuple[str, str], EstimateRow] = {}
    for row in estimate.rows():
        key = (row.first.cell.study.name, row.first.cell.model.name)
        rows[key] = EstimateRow((*rows[key].cells, *row.cells)) if key in rows else row
    return [header, *(_memory_row(row, sizes) for row in rows.values())]


def _memory_row(row: EstimateRow, sizes: Sequence[int]) -> list[str]:
    estimate = row.fullest
    memory = estimate.memory
    largest = [str(estimate.micro_batches.get(gb) or UNKNOWN) for gb in sizes]
    most_mb = max(cell.mem_mb for cell in row.cells)
    minutes = sorted(cell.minutes for cell in row.cells)
    limits = dict.fromkeys(map(str, (minutes[0], minutes[-1])))
    return [
        estimate.cell.study.name,
        estimate.cell.model.name,
        size(memory.weights + memory.gathered + memory.casts),
        size(memory.gradients),
        size(memory.optimizer),
        size(memory.activations),
        size(memory.head),
        str(memory.micro_batch_sequences),
        size(memory.peak),
        *largest,
        size(1e6 * most_mb),
        " to ".join(limits) + " min",
    ]


def rental_table(estimate: Estimate) -> list[list[str]]:
    """Return the table of what is left to train on GPUs that can be rented, the header first."""
    header = ["GPU", "memory", "peak in bf16", "cells that fit on one", "GPU h left", "an hour"]
    return [[*header, "cost left"], *(_rental_row(rental) for rental in estimate.rentals)]


def _rental_row(rental: Rental) -> list[str]:
    gpu = GPUS[rental.gpu]
    others = f"not {', '.join(rental.too_large)}" if rental.too_large else "all"
    return [
        rental.gpu,
        size(gpu.memory),
        f"{gpu.peak_flops / 1e12:.0f} TFLOP/s",
        f"{rental.fitting}, {others}",
        span(*rental.hours_range),
        f"{rental.price:g} USD",
        f"{span(*rental.cost_range)} USD",
    ]
