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
from coupled_adam_bench.tools.rehearsal import fake_gpu
from coupled_adam_bench.tools.rehearsal.combinations import Combination, combinations
from coupled_adam_bench.tools.rehearsal.fake import Rehearsed, rehearse
from coupled_adam_bench.tools.rehearsal.stages import Run, run_miniature, stage_names
from coupled_adam_bench.tools.rehearsal.watch import Finding

_GB = 1e9
_PARTS = ("weights", "gradients", "states", "rest")
_HEADER = ("combination", "cells", "device", "micro-batch", *_PARTS, "peak", "evaluation", "seconds", "found")
_TEXT_COLUMNS = {0, 2, len(_HEADER) - 1}


def rehearse_plan(plan: Plan, templates: Path, gpu_gb: float, run: Run) -> int:
    """Rehearse a plan, print what was found and what it takes, and return 1 if something was found, else 0.

    ``gpu_gb`` is the memory of a GPU in 10^9 bytes, and ``run`` runs a command of the package.
    """
    started = time.perf_counter()
    stages = stage_names(plan, templates)
    found = combinations(plan)
    with _on_fake_tensors(found, gpu_gb) as works:
        with Progress(len(stages), "stages", "rehearse in miniature") as progress:
            stopped = run_miniature(plan, templates, run, lambda name: progress.update(1, stage=name))
        seconds = time.perf_counter() - started
        rehearsed: list[Rehearsed] = []
        with Progress(len(found), "combinations", "rehearse on fake tensors") as progress:
            for work in works:
                rehearsed.append(work.result())
                progress.update(1, last=rehearsed[-1].combination.label)
    print(table(rehearsed, gpu_gb), end="")
    outcome = f"stopped: {stopped}" if stopped else f"{len(stages)} stages ok, from the text to the report"
    print(f"miniature: for real on the CPU: {outcome} ({seconds:.0f} s)")
    problems = [finding for result in rehearsed for finding in result.findings] + ([stopped] if stopped else [])
    print(f"rehearsed {plan.name}: {_counted(problems)}", file=sys.stdout, flush=True)
    return 1 if problems else 0


@contextmanager
def _on_fake_tensors(found: Sequence[Combination], gpu_gb: float) -> Iterator[list[Future[Rehearsed]]]:
    """Yield the rehearsals of combinations, in a process of its own."""
    # Not a fork: threads of this process may hold locks.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield [pool.submit(rehearse, combination, gpu_gb * _GB) for combination in found]


def _counted(problems: Sequence[Finding]) -> str:
    return "nothing was found" if not problems else f"{len(problems)} thing(s) found, see above"


def table(rehearsed: Sequence[Rehearsed], gpu_gb: float) -> str:
    """Return a line for each combination, with what was found below it; memory is of one process, in 10^9 bytes."""
    rows: list[tuple[str, ...]] = [_HEADER]
    for result in rehearsed:
        parts = [_gb(result.parts.get(name)) for name in _PARTS]
        rows.append(
            (
                result.combination.label,
                str(result.combination.n_cells),
                result.device,
                str(result.micro_batch_sequences or "-"),
                *parts,
                _gb(result.peak_bytes),
                _gb(result.evaluation_bytes),
                f"{result.seconds:.1f}",
                _verdict(result, gpu_gb),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    lines = []
    for index, row in enumerate(rows):
        cells = [
            text.ljust(width) if column in _TEXT_COLUMNS else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
        lines += [f"    {finding}" for finding in rehearsed[index - 1].findings] if index else []
    kind = "fake CUDA" if any(result.device == "cuda" for result in rehearsed) else "a fake CPU"
    why = "" if fake_gpu.is_possible() else "; this PyTorch is built without CUDA, so mixed devices are not seen"
    if any(result.combination.uses_ddp for result in rehearsed):
        lines.append(
            "ddp: fake tensors cannot pass through DistributedDataParallel; its buckets are added to the peak."
        )
    lines.append(f"Memory of one process in GB (10^9 bytes) on {kind}, counted as tensors{why}.")
    return "\n".join(lines) + "\n"


def _verdict(result: Rehearsed, gpu_gb: float) -> str:
    if result.findings:
        return f"{len(result.findings)} found"
    largest = max(result.peak_bytes or 0, result.evaluation_bytes or 0)
    fits = not result.combination.execution.gpus or largest <= gpu_gb * _GB
    return "ok" if fits else f"ok, but more than {gpu_gb:g} GB"


def _gb(size: int | None) -> str:
    return "-" if size is None else f"{size / _GB:.3f}"
