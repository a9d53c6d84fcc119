"""The command ``rehearse``: both rehearsals of a plan, and the table of what they found."""

import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from coupled_adam_bench.machine.progress import Progress
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.tools.rehearsal.fake import Combination, Rehearsed, combinations, rehearse
from coupled_adam_bench.tools.rehearsal.miniature import Run, run_miniature, stage_names
from embedding_geometry.table import align

_GB = 1e9
_HEADER = ("combination", "cells", "micro-batch", "weights", "states", "peak", "seconds", "found")


def rehearse_plan(plan: Plan, templates: Path, gpu_gb: float, run: Run) -> int:
    """Rehearse a plan, print what was found and what it takes, and return 1 if something was found,
    else 0.

    ``gpu_gb`` is the memory of a GPU in 10^9 bytes, and ``run`` runs a command of the package.
    """
    started = time.perf_counter()
    stages = stage_names(plan, templates)
    found = combinations(plan)
    # Another process is at work on the fake tensors while this one runs the miniature.
    with _on_fake_tensors(found, gpu_gb) as works:
        with Progress(len(stages), "stages", "rehearse in miniature") as progress:
            stopped = run_miniature(
                plan, templates, run, lambda name: progress.update(1, stage=name)
            )
        seconds = time.perf_counter() - started
        rehearsed: list[Rehearsed] = []
        with Progress(len(found), "combinations", "rehearse on fake tensors") as progress:
            for work in works:
                rehearsed.append(work.result())
                progress.update(1, last=rehearsed[-1].combination.label)
    print(table(rehearsed, gpu_gb), end="")
    outcome = (
        f"stopped: {stopped}"
        if stopped
        else f"{len(stages)} stages ok, from the text to the report"
    )
    print(f"miniature: for real on the CPU: {outcome} ({seconds:.0f} s)")
    problems = [finding for result in rehearsed for finding in result.findings] + (
        [stopped] if stopped else []
    )
    counted = f"{len(problems)} thing(s) found, see above" if problems else "nothing was found"
    print(f"rehearsed {plan.name}: {counted}", file=sys.stdout, flush=True)
    return 1 if problems else 0


@contextmanager
def _on_fake_tensors(
    found: Sequence[Combination], gpu_gb: float
) -> Iterator[list[Future[Rehearsed]]]:
    """Yield the rehearsals of combinations, in a process of its own."""
    # Not a fork: threads of this process may hold locks.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield [pool.submit(rehearse, combination, gpu_gb * _GB) for combination in found]


def table(rehearsed: Sequence[Rehearsed], gpu_gb: float) -> str:
    """Return a line for each combination, with what was found below it; memory is of one process,
    in 10^9 bytes."""
    header, *rows = align([_HEADER, *(_row(result, gpu_gb) for result in rehearsed)], n_left=1)
    lines = [header]
    for row, result in zip(rows, rehearsed, strict=True):
        lines += [row, *(f"    {finding}" for finding in result.findings)]
    lines.append(
        "Memory of one process in GB (10^9 bytes) by the count of plan, with the states that were"
        " made."
    )
    return "\n".join(lines) + "\n"


def _row(result: Rehearsed, gpu_gb: float) -> tuple[str, ...]:
    combination, memory = result.combination, result.memory
    micro_batch, sizes = "-", ["-"] * 3
    if memory is not None:
        micro_batch = str(memory.micro_batch_sequences)
        parts = (memory.weights, memory.optimizer, memory.peak)
        sizes = [f"{part / _GB:.3f}" for part in parts]
    return (
        combination.label,
        str(combination.n_cells),
        micro_batch,
        *sizes,
        f"{result.seconds:.1f}",
        _verdict(result, gpu_gb),
    )


def _verdict(result: Rehearsed, gpu_gb: float) -> str:
    if result.findings:
        return f"{len(result.findings)} found"
    too_large = (
        result.memory is not None
        and result.combination.execution.gpus
        and result.memory.peak > gpu_gb * _GB
    )
    return f"ok, but more than {gpu_gb:g} GB" if too_large else "ok"
