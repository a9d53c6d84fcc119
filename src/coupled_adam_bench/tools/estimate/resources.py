"""Memory and time that a training job asks for, where the study does not set them."""

import heapq
import math
from collections.abc import Iterable

from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import Execution
from coupled_adam_bench.tools.estimate.disk import checkpoint_bytes
from coupled_adam_bench.tools.estimate.memory import CPU_PROCESS_BYTES, FP32, memory_of
from coupled_adam_bench.tools.estimate.speed import Speeds

LEAST_MEM_MB = 4000
SHORTEST_MINUTES, LONGEST_MINUTES = 60, 1440
"""Bounds of computed time limits. A run that takes longer goes on in the next job, as clusters often end jobs at a
day."""
START_SECONDS = 120
"""Time until the first step that we assume: imports, data, compilation."""
_MEMORY_MARGIN = 1.5
STOP_SECONDS = 120
"""Time that a training job has to stop, beside that for its checkpoint."""
# A checkpoint is written and read again for its checksums; shared file systems can be as slow.
_CHECKPOINT_BYTES_PER_SECOND = 0.2e9
_TIME_MARGIN = {"measured": 1.5, "budget.mfu": 2.0, "estimate": 2.0}
_GROWTH = 1.5
# Memory of a process on the machine of its GPU, beside the model: Python, torch, the libraries of CUDA, pinned batches.
_GPU_PROCESS_BYTES = 5_000_000_000


def host_bytes(cell: Cell, execution: Execution) -> int:
    """Return the bytes that all processes of a training job take on its machine, GPUs left out.

    Each process builds the whole model before it goes to the GPU or into shards. A checkpoint is copied before it is
    written, and the first process holds the model twice when it exports it.
    """
    if execution.gpus:
        each = _GPU_PROCESS_BYTES + FP32 * cell.n_params
    else:
        each = CPU_PROCESS_BYTES + memory_of(cell, execution).peak
    copies = execution.processes if execution.parallel == "ddp" else 1
    return execution.processes * each + copies * checkpoint_bytes(cell) + 2 * FP32 * cell.n_params


def train_mem_mb(cell: Cell, execution: Execution) -> int:
    """Return the memory in MB of a job that trains a cell: that of ``execution``, or computed with a margin."""
    if execution.train_mem_mb is not None:
        return execution.train_mem_mb
    return max(LEAST_MEM_MB, math.ceil(_MEMORY_MARGIN * host_bytes(cell, execution) / 1e6))


def job_mem_mb(parts: Iterable[Cell], execution: Execution, at_once: int) -> int:
    """Return the memory in MB of a job that trains ``parts``: that of ``execution``, or of the largest ``at_once``."""
    if execution.train_mem_mb is not None:
        return execution.train_mem_mb
    return sum(heapq.nlargest(at_once, (train_mem_mb(part, execution) for part in parts)))


def stop_seconds(parts: Iterable[Cell]) -> int:
    """Return the seconds before its end at which a job that trains ``parts`` must be asked to stop."""
    return STOP_SECONDS + math.ceil(max(map(checkpoint_bytes, parts)) / _CHECKPOINT_BYTES_PER_SECOND)


def train_minutes(parts: Iterable[Cell], execution: Execution, speeds: Speeds, attempt: int = 1) -> int:
    """Return the time limit of a job's ``attempt`` (from 1): that of ``execution``, or computed with a margin.

    ``parts`` are what the job trains, each with the steps of its own.
    """
    if execution.train_minutes is not None:
        return execution.train_minutes
    seconds = float(START_SECONDS)
    for part in parts:
        speed, source = speeds.tokens_per_second(part, execution)
        seconds += _TIME_MARGIN[source] * part.n_tokens / speed
    minutes = max(SHORTEST_MINUTES, math.ceil(seconds / 60)) * _GROWTH ** (attempt - 1)
    return math.ceil(min(LONGEST_MINUTES, minutes))
