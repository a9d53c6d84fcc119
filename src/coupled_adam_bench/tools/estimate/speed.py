"""Time of training: measured where runs have ended, else computed from FLOPs and bytes.

The computed times are those of ``roofline``, times what measured steps took more: our own on this
kind of GPU or on one with the same chip, and else those of public logs of others' code.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from coupled_adam_bench.machine.gpus import GPUS
from coupled_adam_bench.store.paths import GPU_SPEED, RESULTS, RunFiles
from coupled_adam_bench.store.runs import FINISHED, read_run
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import Execution
from coupled_adam_bench.tools.estimate.public_logs import (
    Log,
    ResidualSource,
    read_logs,
    residual_of,
)
from coupled_adam_bench.tools.estimate.roofline import step_parts
from coupled_adam_bench.training.memory import local_sequences

CPU_FLOPS_PER_THREAD = 40e9
"""The demo's runs did 37 to 55 GFLOP/s on a thread with AVX2, with nothing else on the machine."""
# Seconds of a thread for a step of contexts, per logit of the contexts and per token
# (benchmarks/contexts.py).
_CPU_LOGIT, _CPU_TOKEN = 5e-9, 3.5e-8

SHORTEST_MINUTES, LONGEST_MINUTES = 60, 1440
"""Bounds of computed time limits. A run that takes longer goes on in the next job, as clusters
often end jobs at a day."""
START_SECONDS = 120
"""Time until the first step that we assume: imports, data, compilation."""
_TIME_MARGIN = {
    "measured": 1.5,
    "proof": 1.5,
    "one card": 2.0,
    "same chip": 2.0,
    "budget.mfu": 2.0,
    "estimate": 2.0,
}
_GROWTH = 1.5

Source = Literal["measured", "budget.mfu"] | ResidualSource
"""What a speed rests on: ended runs, ``budget.mfu``, or a count with what measured steps took
more."""


class Spread(NamedTuple):
    """Between which shares of an estimate the truth may lie."""

    low: float = 1.0
    high: float = 1.0


class Speed(NamedTuple):
    """Tokens a second of all processes of a cell, what that rests on, and the spread of the time
    that follows."""

    tokens_per_second: float
    source: Source
    spread: Spread = Spread()


def estimated_mfu(cell: Cell, execution: Execution, own: Sequence[Log] = ()) -> float:
    """Return the model FLOPs utilization to expect, of the peak in bfloat16, by the count of a step
    and what logs took more.

    ``own`` are logs of our code (see ``public_logs``).
    """
    peak = GPUS[cell.study.budget.gpu].peak_flops
    tokens = local_sequences(cell, execution) * cell.training.seq_len
    seconds = sum(step_parts(cell, execution).values()) * residual_of(cell, own).factor
    return cell.flops / cell.n_tokens * tokens / seconds / peak


def validation_share(cell: Cell, execution: Execution) -> float:
    """Return the time of a cell's validation losses over that of its training; a forward pass is a
    third of a step."""
    if execution.eval_every is None:
        return 0.0
    batch = cell.training.batch_sequences
    times = -(-cell.steps // execution.eval_every)
    return times * (execution.eval_sequences or batch) / (3 * cell.steps * batch)


def estimated_speed(cell: Cell, execution: Execution, own: Sequence[Log] = ()) -> Speed:
    """Return the speed of a cell of which no run has ended.

    ``own`` are logs of our code (see ``public_logs``). The time of validation counts; that of the
    embedding's geometry, seconds in a run of hours, does not.
    """
    if cell.model.n_contexts is not None and not execution.gpus:
        logits, tokens = cell.model.n_contexts * cell.vocab_size, cell.n_tokens / cell.steps
        return Speed(tokens / (_CPU_LOGIT * logits + _CPU_TOKEN * tokens), "estimate")
    flops = cell.flops / cell.n_tokens * (1 + validation_share(cell, execution))
    if not execution.gpus:
        return Speed(execution.training_threads * CPU_FLOPS_PER_THREAD / flops, "estimate")
    budget = cell.study.budget
    peak_per_token = execution.gpus * GPUS[budget.gpu].peak_flops / flops
    if budget.mfu is not None:
        return Speed(peak_per_token * budget.mfu, "budget.mfu")
    residual = residual_of(cell, own)
    mfu = estimated_mfu(cell, execution, own)
    return Speed(peak_per_token * mfu, residual.source, Spread(residual.low, residual.high))


def _kind(cell: Cell) -> tuple[Any, ...]:
    """Return what two runs must share for their tokens/s to be comparable, besides the number of
    processes."""
    sizes = cell.model.model_dump(exclude={"name", "label", "learning_rate"})
    training = cell.training
    return (
        *sizes.values(),
        cell.vocab_size,
        training.seq_len,
        training.batch_sequences,
        training.precision,
    )


@dataclass(frozen=True)
class EndedRun:
    """What the record of an ended run says about its cost."""

    status: str
    seconds: float
    """Time of the cell's own steps: those of its trunk are left out."""
    processes: int
    tokens_per_second: float
    mfu: float | None
    on_gpu: bool
    """By the device that trained the run; its environment names the CUDA of torch's build."""
    joules: float | None
    """Energy of the GPUs for the cell's own steps, None where it is not known."""


def ended_run(run_dir: Path) -> EndedRun | None:
    """Return the cost of a run, None if it has not ended or its record cannot be read."""
    try:
        run = read_run(RunFiles(run_dir).record)
        train = run["train"]
        steps = max(1, run["step"])
        own = (steps - run["trunk_steps"]) / steps
        joules = train["joules"]
        ended = EndedRun(
            run["status"],
            train["seconds"] * own,
            train["processes"],
            train["tokens_per_second"],
            train["mfu"],
            train["device"] == "cuda",
            None if joules is None else joules * own,
        )
    except (ValueError, OSError, KeyError, TypeError):
        return None
    return ended if ended.status in FINISHED and ended.tokens_per_second else None


@dataclass
class Speeds:
    """Speeds of ended runs, and of cells that are still to train."""

    runs: dict[str, EndedRun] = field(default_factory=dict)
    """The ended runs by the ids of their cells."""
    own: Sequence[Log] = ()
    """What the proof on a GPU has measured."""
    _by_kind: dict[Any, list[float]] = field(default_factory=lambda: defaultdict(list))
    _mfus: list[float] = field(default_factory=list)

    def add(self, cell: Cell, run: EndedRun) -> None:
        """Take the speed of an ended run."""
        self.runs[cell.id] = run
        self._by_kind[run.on_gpu, run.processes, *_kind(cell)].append(run.tokens_per_second)
        if run.mfu is not None:
            self._mfus.append(run.mfu)

    def of(self, cell: Cell, execution: Execution) -> Speed:
        """Return the speed of a cell.

        That is the median of ended runs of the same size; else the median MFU of ended runs of
        other sizes; else an estimate.
        """
        if same := self._by_kind.get((execution.gpus > 0, execution.processes, *_kind(cell))):
            return Speed(median(same), "measured")
        if self._mfus and execution.gpus:
            flops = execution.gpus * GPUS[cell.study.budget.gpu].peak_flops * median(self._mfus)
            return Speed(flops * cell.n_tokens / cell.flops, "measured")
        return estimated_speed(cell, execution, self.own)


def read_speeds(cells: Iterable[Cell], runs: Path) -> Speeds:
    """Return the speeds of those of ``cells`` whose runs, in the folder ``runs``, have ended.

    Beside that folder may be what the proof on a GPU has measured.
    """
    speeds = Speeds(own=read_logs(runs.parent / GPU_SPEED.relative_to(RESULTS)))
    for cell in cells:
        run = ended_run(runs / cell.id)
        if run is not None:
            speeds.add(cell, run)
    return speeds


def train_minutes(
    parts: Iterable[Cell], execution: Execution, speeds: Speeds, attempt: int = 1
) -> int:
    """Return the time limit of a job's ``attempt`` (from 1): that of ``execution``, or computed
    with a margin.

    ``parts`` are what the job trains, each with the steps of its own.
    """
    if execution.train_minutes is not None:
        return execution.train_minutes
    seconds = float(START_SECONDS)
    for part in parts:
        speed = speeds.of(part, execution)
        seconds += _TIME_MARGIN[speed.source] * part.n_tokens / speed.tokens_per_second
    minutes = max(SHORTEST_MINUTES, math.ceil(seconds / 60)) * _GROWTH ** (attempt - 1)
    return math.ceil(min(LONGEST_MINUTES, minutes))
