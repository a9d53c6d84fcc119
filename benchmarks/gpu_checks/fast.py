"""These checks ask whether a GPU trains as fast, and in as much memory, as we say; no number is a
result of a study."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from gpu_checks.common import (
    VOCAB_SIZE,
    At,
    Row,
    Rows,
    graphs,
    record,
    roofline,
    step_log,
    write_tokens,
)
from gpu_checks.reference import reference_step
from head import TODAY, make_way, ways
from optimizer import build, clip_and_step
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as profiled

from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.training.memory import memory_of
from coupled_adam_bench.training.monitor import peak_flops
from coupled_adam_bench.training.trainer import Trainer

PAPER = {"seq_len": 1024, "batch_sequences": 96}
BEST_PUBLIC = {"H100": 468_000, "H200": 490_000}
"""The best public tokens a second of one GPU at this size: llm.c's, and modded-nanogpt's on an H200
(docs/gpu.md)."""
SPEED = "tokens a second"


def paper_cell(at: At, **execution: Any) -> Cell:
    """Return the cell of 125M at the paper's batch."""
    return at.cell(
        "gpt2-125m", PAPER, {"compile": True, "micro_batch_sequences": "auto"} | execution
    )


def reference(at: At) -> Rows:
    """nanoGPT's loop, at its own micro-batch and at a larger one."""
    cell = paper_cell(at)
    data = at.folder / "data"
    write_tokens(data, cell)
    for micro in at.size((12, 48), (2,)):
        yield from _reference(at, cell, data, micro)
        at.forget()


def _reference(at: At, cell: Cell, data: Path, micro: int) -> Rows:
    step, name = reference_step(cell, data, micro, at.device), f"nanoGPT, micro-batch {micro}"
    begun = time.perf_counter()
    step(0)
    at.wait()
    yield Row(f"{name}, seconds to the first step", time.perf_counter() - begun)
    theirs = tokens_per_second(at, cell, step)
    yield record(f"{name}, {SPEED}", theirs)
    if SPEED in at.known:
        yield record(f"our speed relative to {name}", at.known[SPEED] / theirs)
    yield Row(f"{name}, GB", at.peak_bytes(lambda: step(100)) / 1e9)


def tokens_per_second(at: At, cell: Cell, step: Callable[[int], object]) -> float:
    """Return the speed of steps 2 to 21."""
    step(1)
    numbers = iter(range(2, 10_000))
    n_steps = at.size(20, 2)
    batch_tokens = cell.training.batch_sequences * cell.training.seq_len
    return batch_tokens / at.seconds(lambda: step(next(numbers)), n_steps)


def training(at: At) -> Rows:
    """Our trainer on the same: its first step, its speed and its graphs."""
    cell = paper_cell(at)
    begun = time.perf_counter()
    with at.trainer(cell) as trainer:
        trainer.train_step(0)[0].item()
        yield record("seconds to the first step", time.perf_counter() - begun)
        micro = trainer.micro_batch_sequences
        yield record("sequences of a micro-batch", micro)
        speed = tokens_per_second(at, cell, trainer.train_step)
        batch_tokens = cell.training.batch_sequences * cell.training.seq_len
        log = step_log(cell, micro, 1000 * batch_tokens / speed)
        yield record(SPEED, speed, log=log if at.on_gpu else None)
        peak = peak_flops(at.device) or float("nan")
        yield record("MFU", cell.flops / cell.n_tokens * speed / peak)
        yield record("GB", at.peak_bytes(lambda: trainer.train_step(100)) / 1e9)
    yield record("graphs of the compiler", graphs())
    best = BEST_PUBLIC.get(cell.study.budget.gpu)
    if at.on_gpu and best is not None:
        yield record("speed relative to the best public figure", speed / best)


class Event(NamedTuple):
    """Something that ran on the device, in microseconds."""

    name: str
    start: float
    end: float


_ATTENTION = ("flash", "fmha", "sdpa", "attention")
_PRODUCTS = ("gemm", "nvjet", "cutlass", "xmma", "splitk", "addmm", "aten::mm", "cublas")
_CASTS = ("triton_poi_fused__to_copy_t_", "triton_poi_fused__to_copy_")


def part_of(name: str, ranges: Iterable[str]) -> str:
    """Return the part of the count to which a kernel belongs, by its name and the ranges in
    which it ran."""
    name = name.lower()
    if any(word in name for word in _ATTENTION):
        return "attention"
    if any(word in name for word in _PRODUCTS):
        return "products"
    for part in ("weights", "logits"):
        if part in ranges:
            return part
    # A kernel of the compiler that does nothing but cast is one of weights.
    is_cast = any(name.startswith(word) and name.removeprefix(word).isdigit() for word in _CASTS)
    return "weights" if is_cast else "layers"


def by_part(kernels: list[Event], ranges: list[Event]) -> dict[str, float]:
    """Return the seconds of kernels by part; a kernel is in a range if it began within its time on
    the device."""
    seconds = dict.fromkeys(("products", "attention", "logits", "layers", "weights"), 0.0)
    for kernel in kernels:
        around = [each.name for each in ranges if each.start <= kernel.start < each.end]
        seconds[part_of(kernel.name, around)] += (kernel.end - kernel.start) / 1e6
    return seconds


@contextlib.contextmanager
def ranges_of(trainer: Trainer) -> Iterator[None]:
    """Mark the loss, which computes its gradients at once, and the optimizers in a profile of
    ``trainer``."""
    model, optimizers = trainer.model, trainer.optimizers
    with contextlib.ExitStack() as stack:
        loss = contextlib.ExitStack()

        def begin(*_: Any) -> None:
            loss.enter_context(record_function("logits"))

        def end(*_: Any) -> None:
            loss.close()

        stack.callback(model.ln_f.register_forward_hook(begin).remove)
        stack.callback(model.register_forward_hook(end).remove)
        for name in ("clip_grad_norm_", "step"):
            method = getattr(optimizers, name)
            setattr(optimizers, name, partial(_within, "weights", method))
            stack.callback(delattr, optimizers, name)
        yield


def _within(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    with record_function(name):
        return function(*arguments)


def device_events(profiler: profiled, kind: DeviceType) -> tuple[list[Event], list[Event]]:
    """Return kernels and ranges as the device ran them; those of a CPU are operations, without what
    they call."""
    kernels, ranges = [], []
    for event in profiler.events() or []:
        start, end = event.time_range.start, event.time_range.end
        if event.device_type != kind:
            continue
        if event.name in ("logits", "weights"):
            ranges.append(Event(event.name, start, end))
        elif not event.is_user_annotation:
            kernels.append(
                Event(
                    event.name,
                    start,
                    end if kind == DeviceType.CUDA else start + event.self_cpu_time_total,
                )
            )
    return kernels, ranges


def profile(at: At) -> Rows:
    """The profiler splits the time of a step by part, and compares each with the count."""
    cell = paper_cell(at)
    n_steps = at.size(3, 1)
    kind = DeviceType.CUDA if at.on_gpu else DeviceType.CPU
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if at.on_gpu else [])]
    with at.trainer(cell) as trainer, ranges_of(trainer):
        execution = cell.study.execution.model_copy(
            update={"micro_batch_sequences": trainer.micro_batch_sequences}
        )
        steps = iter(range(100))
        for _ in range(2):
            trainer.train_step(next(steps))
        alone = at.seconds(lambda: trainer.train_step(next(steps)), n_steps)
        with profiled(activities=activities) as profiler:
            for _ in range(n_steps):
                trainer.train_step(next(steps))
            at.wait()
    measured = by_part(*device_events(profiler, kind))
    estimated = roofline(cell, execution)
    assert measured.keys() == estimated.keys(), "the parts of the count have other names"
    for part, value in measured.items():
        yield record(f"{part}, ms", 1000 * value / n_steps)
        yield Row(f"{part} relative to the count", value / n_steps / estimated[part])
    yield record("step, ms", 1000 * alone)
    yield Row("step relative to the count", alone / sum(estimated.values()))
    yield Row("share of the step in kernels", sum(measured.values()) / n_steps / alone)


def waits(at: At) -> Rows:
    """Three steps in which a wait of the host for the device is an error."""
    with at.trainer(paper_cell(at)) as trainer:
        for step in range(2):
            trainer.train_step(step)
        if at.on_gpu:
            torch.cuda.set_sync_debug_mode("error")
        try:
            for step in range(2, 5):
                trainer.train_step(step)
        finally:
            if at.on_gpu:
                torch.cuda.set_sync_debug_mode("default")
    yield Row("steps without a wait", 3, None, 3)


def optimizer(at: At) -> Rows:
    """Clipping and step of the embedding of 125M, 50 in a queue, against fused AdamW's."""
    shape = at.size((VOCAB_SIZE, 768), (64, 8))
    for dtype in (torch.float32, torch.bfloat16):
        times = {}
        for name in ("adamw_fused", "coupled_adam_fused" if at.on_gpu else "coupled_adam"):
            parameter = nn.Parameter(torch.randn(shape, device=at.device).to(dtype))
            parameter.grad = torch.randn_like(parameter)
            step = partial(clip_and_step, build(name, parameter), parameter)
            at.seconds(step, at.size(10, 1))
            times[name] = median(at.seconds(step, at.size(50, 2)) for _ in range(5))
            yield record(f"{dtype}, {name}, ms", 1000 * times[name])
        reference, ours = times.values()
        yield record(f"{dtype}, clipping and step relative to AdamW's", ours / reference)


def head(at: At) -> Rows:
    """Loss and gradients of 12 sequences at the head of 125M, in several ways: time, memory, and
    how far the loss is from today's way's."""
    sizes = at.size((VOCAB_SIZE, 768, 12 * 1024), (256, 16, 64))
    times, losses = {}, {}
    for name, way in ways(at.on_gpu).items():
        step = make_way(way, *sizes, at.device.type)
        losses[name] = step().item()
        at.seconds(step, at.size(5, 1))
        times[name] = median(at.seconds(step, at.size(20, 1)) for _ in range(3))
        yield record(f"{name}, ms", 1000 * times[name])
        yield Row(f"{name}, relative to {TODAY} way", times[name] / times[TODAY])
        yield Row(f"{name}, GB", at.peak_bytes(step) / 1e9)
        yield Row(f"{name}, loss", abs(losses[name] / losses[TODAY] - 1), 1e-2)
        del step
        at.forget()


def memory(at: At) -> Rows:
    """The most memory of a step, eager and compiled, against the plan's count."""
    micro = at.size(32, 2)
    cell = paper_cell(at, micro_batch_sequences=micro)
    planned = memory_of(cell, cell.study.execution, micro).peak
    yield Row("plan, GB", planned / 1e9)
    for compiled in (False, True):
        name = "compiled" if compiled else "eager"
        found = _step_bytes(at, cell, compiled)
        at.forget()
        yield record(f"{name}, GB", found / 1e9)
        yield Row(f"{name} relative to plan", found / planned)


def _step_bytes(at: At, cell: Cell, compiled: bool) -> int:
    with at.trainer(cell, compile=compiled) as trainer:
        trainer.train_step(0)
        return at.peak_bytes(lambda: trainer.train_step(1))
