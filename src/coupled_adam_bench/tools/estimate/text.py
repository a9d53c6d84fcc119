"""An estimate as text: a summary by model and number of tokens that fits on a screen."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, assert_never

from markupsafe import Markup

from coupled_adam_bench.page.blocks import Block, Cell, Fold, Grid, Terms, Text, listed
from coupled_adam_bench.store.runs import KEEP_CHECKPOINTS
from coupled_adam_bench.tools.estimate.cell import CellEstimate
from coupled_adam_bench.tools.estimate.public_logs import SAME_CHIP
from coupled_adam_bench.tools.estimate.quantities import count, hours, size, span
from coupled_adam_bench.tools.estimate.rental import PRICES_OF
from coupled_adam_bench.tools.estimate.speed import Source
from coupled_adam_bench.tools.estimate.study import Estimate, estimate_study
from coupled_adam_bench.tools.estimate.tables import memory_table, rental_table, training_table
from embedding_geometry.table import align

if TYPE_CHECKING:  # a plan is described without pandas
    from coupled_adam_bench.statistics.declared import Material

_KEPT = f"{KEEP_CHECKPOINTS} a cell, of no use once it has ended"


def _basis_of(source: Source, machine: str) -> str:
    """Return what times rest on that have this source, of cells on this kind of machine."""
    match source:
        case "measured":
            return "speeds of ended runs"
        case "proof":
            return f"what the proof on a GPU has measured for {machine}"
        case "one card":
            return f"steps that this bench took on one {machine} (docs/gpu.md)"
        case "same chip":
            return (
                f"steps that this bench took on one {SAME_CHIP[machine]}, scaled to the {machine},"
                " which has the same chip and a slower memory (docs/gpu.md)"
            )
        case "budget.mfu":
            return f"the MFU that budget.mfu gives for {machine}"
        case "estimate":
            return f"an estimate for {machine}"
    assert_never(source)


def basis(estimate: Estimate) -> str:
    """Return a sentence that says what the times rest on."""
    machine = estimate.budget.gpu if estimate.on_gpus else "threads of 40 GFLOP/s"
    sources = dict.fromkeys(cell.source for cell in estimate.cells)
    named = " and ".join(_basis_of(source, machine) for source in sources)
    logs = ""
    if _is_by_public_logs(estimate):
        logs = f" by public logs of others' code; no {machine} has run ours (docs/gpu.md)"
    ended = [cell for cell in estimate.cells if cell.run is not None]
    compared = ""
    if ended:
        taken = sum(cell.hours_taken for cell in ended)
        assumed = sum(_assumed(cell) for cell in ended)
        compared = f" The ended runs took {count(taken / assumed)} times what was assumed before."
    return f"The times rest on {named}{logs}.{compared}"


def _assumed(estimate: CellEstimate) -> float:
    return estimate.assumed_seconds * estimate.processors / 3600


def totals(estimate: Estimate) -> list[tuple[str, str]]:
    """Return the totals as pairs of a name and a text."""
    return [*_work(estimate), *_cost(estimate), *_wall_time(estimate), ("disk", _disk(estimate))]


def _work(estimate: Estimate) -> Iterator[tuple[str, str]]:
    """Yield how much there is to train, and what ended runs took."""
    unit = "GPU hours" if estimate.on_gpus else "CPU hours"
    done = sum(cell.run is not None for cell in estimate.cells)
    yield "cells", f"{len(estimate.cells)}, {done} done"
    yield "tokens", f"{estimate.n_tokens:,}"
    yield "FLOPs", f"{estimate.flops:.2e}"
    yield unit, _hours_text(estimate)
    if done:
        yield f"{unit} taken", f"{count(estimate.hours_taken)} by the runs that ended"
    if done and estimate.on_gpus:
        kwh = estimate.kwh_taken
        yield "energy so far", "unknown" if kwh is None else f"{kwh:.3g} kWh, only the GPUs"


def _cost(estimate: Estimate) -> Iterator[tuple[str, str]]:
    if not estimate.on_gpus:
        return
    price = estimate.budget.price_per_gpu_hour
    if price is None:
        yield "cost", "unknown; set budget.gpu and budget.price_per_gpu_hour"
        return
    cost, left = (
        span(low * price, high * price)
        for low, high in (estimate.hours_range, estimate.hours_left_range)
    )
    yield "cost", f"{cost} USD, {left} left, at {price:g} USD an hour"


def _wall_time(estimate: Estimate) -> Iterator[tuple[str, str]]:
    """Yield how long what is left takes at the least."""
    cell, seconds = estimate.longest
    if not seconds:
        return
    unit = "GPU" if estimate.on_gpus else "processor"
    slots = f"{estimate.slots} {unit}{'' if estimate.slots == 1 else 's'}"
    at_least = f"at least {hours(estimate.wall_seconds)} on {slots}"
    yield "wall time", f"{at_least}, without evaluation and queues"
    gpus = estimate.budget.gpus
    if estimate.on_gpus and estimate.slots > gpus:
        yield "", f"a cell takes {estimate.slots} GPUs, more than budget.gpus: {gpus}"
    yield "", f"at least {hours(seconds)} on any number, for {cell}"


def _disk(estimate: Estimate) -> str:
    """Return what bins, checkpoints and models take of the disk."""
    known = [data.bytes for data in estimate.data]
    extra = sum(filter(None, [data.preparing_bytes for data in estimate.data]))
    if None in known:
        bins = "token bins unknown before they are prepared"
    else:
        bins = f"token bins {size(sum(filter(None, known)))}"
        bins += f" ({size(extra)} while made)" if extra else ""
    models = size(estimate.model_bytes)
    checkpoints = size(estimate.checkpoint_bytes)
    return f"{bins}, checkpoints {checkpoints} ({_KEPT}), models {models}"


def _hours_text(estimate: Estimate) -> str:
    basis = ""
    if _is_by_public_logs(estimate):
        basis = " by public logs of others' code"
    elif estimate.on_gpus and {"one card", "same chip"} & {cell.source for cell in estimate.cells}:
        gpu = estimate.budget.gpu
        basis = f" by steps of one {SAME_CHIP.get(gpu, gpu)}"
    elif all(cell.source == "measured" for cell in estimate.cells):
        basis = " by the medians of ended runs"
    left = span(*estimate.hours_left_range)
    return f"{span(*estimate.hours_range)}{basis}, {left} of them left"


def _is_by_public_logs(estimate: Estimate) -> bool:
    return estimate.on_gpus and any(cell.source == "estimate" for cell in estimate.cells)


def describe(estimate: Estimate) -> str:
    """Return the summary."""
    plan = estimate.plan
    tuning = f", and {len(plan.tuning_cells)} that tune," if plan.tuning_cells else ""
    lines = [f"{plan.name}: {len(plan.cells)} cells{tuning} on {', '.join(plan.data_ids)}", ""]
    lines += [
        "Training, what cells share before their decay left out" if estimate.trunks else "Training"
    ]
    lines += [*align(training_table(estimate)), ""]
    what = (
        "a GPU, and the largest micro-batch, in sequences, by its size"
        if estimate.on_gpus
        else "a process"
    )
    lines += [f"Memory of {what}", *align(memory_table(estimate)), ""]
    if estimate.rentals:
        lines += [
            f"Rented GPUs, at prices of {PRICES_OF} or your own",
            *align(rental_table(estimate)),
            "",
        ]
    # The totals stand last, where a terminal shows them.
    pairs = totals(estimate)
    width = max(len(name) for name, _ in pairs)
    lines += [f"{name:<{width}}  {text}" for name, text in pairs]
    return "\n".join([*lines, "", basis(estimate), ""])


def _grid(title: str, table: Sequence[Sequence[str]]) -> Grid[Sequence[str | Cell]]:
    """Return a table of text, header first, whose columns but the first are numbers."""
    first, *others = table[0]
    columns = listed((first, "text"), *((name, "number") for name in others))
    return Grid(title, columns, table[1:], caption=title)


def cost(material: "Material") -> Iterator[Block]:
    """Return the report's section on what the study takes, as ``plan`` says."""
    estimate = estimate_study(material.plan, material.runs.parent)
    says = Markup("{} <code>snakemake plan</code> says the same of any study before its first job.")
    yield Text(says.format(basis(estimate)))
    yield Terms(totals(estimate))
    training = "Training: estimated, and of ended runs the median"
    machine = "GPU" if estimate.on_gpus else "process"
    memory = f"Memory of a {machine} by a count of its tensors, and what a training job asks for"
    tables = ((training, training_table(estimate)), (memory, memory_table(estimate)))
    yield Fold("By model", [_grid(*each) for each in tables])
