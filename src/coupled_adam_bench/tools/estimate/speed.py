"""Time of training: measured where runs have ended, else computed from FLOPs and bytes.

No GPU has measured the computed times. They are FLOPs at a share of the peak plus bytes at a share
of the memory bandwidth, without overlap. Communication between GPUs is left out.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from coupled_adam_bench.machine.gpus import GPUS
from coupled_adam_bench.store.paths import RunFiles
from coupled_adam_bench.store.runs import FINISHED, read_run
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import Execution
from coupled_adam_bench.training.memory import local_sequences, memory_of

# Shares of the peak that we assume; TF32, in which float32 is multiplied, has half the peak of
# bfloat16.
_MATMUL_SHARE, _ATTENTION_SHARE, _BANDWIDTH_SHARE, _TF32 = 0.75, 0.5, 0.8, 0.5
# The following are bytes of memory traffic. Per parameter, AdamW in float32 reads weight, gradient
# and two moments and writes all but the gradient.
_OPTIMIZER = 4 * (4 + 3)
_CLIP = 12  # per parameter: one read for the norm, a read and a write to scale
_ACCUMULATE = (
    8 + 6
)  # per parameter and micro-batch: add to the gradient in float32, cast the weight to bfloat16
# Per logit, beside what the products read: write it in bfloat16, and then widen it, log-softmax,
# exponential in place, narrow it; or, compiled, one kernel that reads and writes it.
_LOGIT = {False: 2 + (2 + 4) + (4 + 4) + (4 + 4) + (4 + 2), True: 2 + (2 + 2)}
# Per token, layer and unit of width, beside products and attention, with norms and residual in
# float32 and the rest in bfloat16: norms forward and backward, residual sums and those of
# gradients, GELU, casts, and the gradients of queries, keys and values put into one matrix.
_LAYER_PLAIN = (16 + 24) + (20 + 24) + (16 + 24) + 38 + 12
# Compiled, norms, residual sums and casts are kernels of their own: three forward, and backward
# each norm with a sum, a cast and the gradient of its weight, and one cast more.
_LAYER_COMPILED = (6 + 12 + 10) + 2 * (16 + 6) + 6 + (16 + 24) + 12
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
_TIME_MARGIN = {"measured": 1.5, "budget.mfu": 2.0, "estimate": 2.0}
_GROWTH = 1.5

Source = Literal["measured", "budget.mfu", "estimate"]


def step_parts(cell: Cell, execution: Execution) -> dict[str, float]:
    """Return the seconds of one step on the GPUs of the study's budget by what takes them."""
    model, training, gpu = cell.model, cell.training, GPUS[cell.study.budget.gpu]
    sequences = local_sequences(cell, execution)
    tokens = sequences * training.seq_len
    micro_batches = -(-sequences // memory_of(cell, execution).micro_batch_sequences)
    peak = gpu.peak_flops * (1 if training.precision == "bf16" else _TF32)
    attention = 12 * model.n_layer * model.d_model * training.seq_len * tokens
    products = cell.flops // cell.n_tokens * tokens - attention
    shards = execution.processes if execution.parallel == "fsdp" else 1
    bandwidth = gpu.bandwidth * _BANDWIDTH_SHARE
    layer = _LAYER_COMPILED if execution.compile else _LAYER_PLAIN
    weights = (_OPTIMIZER + _CLIP) / shards + _ACCUMULATE * micro_batches
    return {
        "products": products / (peak * _MATMUL_SHARE),
        "attention": attention / (peak * _ATTENTION_SHARE),
        "logits": _LOGIT[execution.compile] * cell.vocab_size * tokens / bandwidth,
        "layers": layer * model.n_layer * model.d_model * tokens / bandwidth,
        "weights": weights * cell.n_params / bandwidth,
    }


def estimated_mfu(cell: Cell, execution: Execution) -> float:
    """Return the model FLOPs utilization that :func:`step_parts` gives: of the peak in bfloat16."""
    tokens = local_sequences(cell, execution) * cell.training.seq_len
    seconds = sum(step_parts(cell, execution).values())
    return cell.flops / cell.n_tokens * tokens / seconds / GPUS[cell.study.budget.gpu].peak_flops


def validation_share(cell: Cell, execution: Execution) -> float:
    """Return the time of a cell's validation losses over that of its training; a forward pass is a
    third of a step."""
    if execution.eval_every is None:
        return 0.0
    batch = cell.training.batch_sequences
    times = -(-cell.steps // execution.eval_every)
    return times * (execution.eval_sequences or batch) / (3 * cell.steps * batch)


def estimated_tokens_per_second(cell: Cell, execution: Execution) -> tuple[float, Source]:
    """Return the tokens/s of all processes of a cell that nobody has measured, and what it rests
    on.

    The time of validation counts; that of the embedding's geometry, seconds in a run of hours, does
    not.
    """
    if cell.model.n_contexts is not None and not execution.gpus:
        logits, tokens = cell.model.n_contexts * cell.vocab_size, cell.n_tokens / cell.steps
        return tokens / (_CPU_LOGIT * logits + _CPU_TOKEN * tokens), "estimate"
    flops = cell.flops / cell.n_tokens * (1 + validation_share(cell, execution))
    if not execution.gpus:
        return execution.training_threads * CPU_FLOPS_PER_THREAD / flops, "estimate"
    mfu, budget = cell.study.budget.mfu, cell.study.budget
    source: Source = "estimate" if mfu is None else "budget.mfu"
    mfu = estimated_mfu(cell, execution) if mfu is None else mfu
    return execution.gpus * GPUS[budget.gpu].peak_flops * mfu / flops, source


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
    peak_memory_bytes: int
    joules: float | None
    """Energy of the GPUs for the cell's own steps, None where it is not known."""


def _is_on_gpu(run: Mapping[str, Any]) -> bool:
    """Tell whether a GPU trained a run; ``environment.cuda`` does not, since it is that of torch's
    build.

    Older records have no ``train.device``: in those, a GPU that we know has an MFU, and any other
    has its maker's name.
    """
    train = run["train"]
    if "device" in train:
        return bool(train["device"] == "cuda")
    return train["mfu"] is not None or "NVIDIA" in run["environment"].get("device", "")


def ended_run(run_dir: Path) -> EndedRun | None:
    """Return the cost of a run, None if it has not ended or its record cannot be read."""
    try:
        run = read_run(RunFiles(run_dir).record)
        train = run["train"]
        steps = max(1, run["step"])
        own = (steps - run["trunk_steps"]) / steps
        joules = train.get("joules")  # runs of older versions do not know it
        ended = EndedRun(
            run["status"],
            train["seconds"] * own,
            train["processes"],
            train["tokens_per_second"],
            train["mfu"],
            _is_on_gpu(run),
            train["peak_memory_bytes"],
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
    _by_kind: dict[Any, list[float]] = field(default_factory=lambda: defaultdict(list))
    _mfus: list[float] = field(default_factory=list)

    def add(self, cell: Cell, run: EndedRun) -> None:
        """Take the speed of an ended run."""
        self.runs[cell.id] = run
        self._by_kind[run.on_gpu, run.processes, *_kind(cell)].append(run.tokens_per_second)
        if run.mfu is not None:
            self._mfus.append(run.mfu)

    def tokens_per_second(self, cell: Cell, execution: Execution) -> tuple[float, Source]:
        """Return the tokens/s of all processes of a cell, and what it rests on.

        That is the median of ended runs of the same size; else the median MFU of ended runs of
        other sizes; else what nobody has measured.
        """
        if same := self._by_kind.get((execution.gpus > 0, execution.processes, *_kind(cell))):
            return median(same), "measured"
        if self._mfus and execution.gpus:
            peak = GPUS[cell.study.budget.gpu].peak_flops
            return execution.gpus * peak * median(
                self._mfus
            ) * cell.n_tokens / cell.flops, "measured"
        return estimated_tokens_per_second(cell, execution)


def read_speeds(cells: Iterable[Cell], runs: Path) -> Speeds:
    """Return the speeds of those of ``cells`` whose runs, in the folder ``runs``, have ended."""
    speeds = Speeds()
    for cell in cells:
        if (run := ended_run(runs / cell.id)) is not None:
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
        speed, source = speeds.tokens_per_second(part, execution)
        seconds += _TIME_MARGIN[source] * part.n_tokens / speed
    minutes = max(SHORTEST_MINUTES, math.ceil(seconds / 60)) * _GROWTH ** (attempt - 1)
    return math.ceil(min(LONGEST_MINUTES, minutes))
