"""Times steps of training in several ways beside nanoGPT's recipe: python tests/gpu/speed.py PLAN.

The first cell of ``results/STUDY/plan.json`` is trained in each way from its first step on, with
its own data. The ways take turns, forth and back, so that what else the card does meets them all.
At the end stands for each its speed, how many times as fast it is as the recipe, with the 95 %
interval over the turns, and how far its losses are from the recipe's.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pandas import DataFrame
from scipy.stats import ttest_1samp
from torch.nn import functional as F

from coupled_adam_bench.models import cross_entropy
from coupled_adam_bench.study.plan import read_plan
from coupled_adam_bench.training.processes import Group
from coupled_adam_bench.training.trainer import Trainer

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda:0" if ON_GPU else "cpu")
STEPS, TURNS = (10, 6) if ON_GPU else (2, 2)
CHUNK = cross_entropy.CHUNK[DEVICE.type]
LARGE_CHUNK = 24_576
RECIPE = "nanoGPT's recipe"


def recipe(trainer: Trainer) -> None:
    """All logits at once, all of the model compiled, and nanoGPT's best micro-batch on an H200."""

    def loss(inputs_BT: torch.Tensor, targets_BT: torch.Tensor, reduction: str) -> torch.Tensor:
        logits_BTV = F.linear(trainer.model.hidden(inputs_BT), trainer.model.head_weight)
        targets_T = targets_BT.flatten()
        return F.cross_entropy(logits_BTV.flatten(0, 1), targets_T, reduction=reduction)

    trainer.module = torch.compile(loss, dynamic=False)
    trainer.micro = min(48, trainer.micro)


def ours(trainer: Trainer) -> None:
    """What a study does with ``compile``."""
    trainer.model.compile_parts()


def kernel(trainer: Trainer) -> None:
    """The kernel of the loss, which has never run on a GPU."""
    from coupled_adam_bench.models.loss_kernel import by_kernel

    trainer.model.compile_parts()
    trainer.model.chunk_loss = by_kernel


def whole_model(trainer: Trainer) -> None:
    """All layers compiled together."""
    softmax = torch.compile(cross_entropy.by_log_softmax, dynamic=False)
    trainer.model.chunk_loss = partial(cross_entropy.by_softmax, softmax=softmax)
    trainer.model.hidden = torch.compile(trainer.model.hidden, dynamic=False)


def max_autotune(trainer: Trainer) -> None:
    """Layers whose kernels are chosen among more."""
    trainer.model.compile_parts()
    for block in trainer.model.blocks:
        block.compile(dynamic=False, mode="max-autotune-no-cudagraphs")


def bf16_stream(trainer: Trainer) -> None:
    """The residual stream in bfloat16."""
    inputs = trainer.model.inputs

    def rounded(*arguments: Any) -> tuple[torch.Tensor, ...]:
        x_BTD, *angles = inputs(*arguments)
        return x_BTD.bfloat16(), *angles

    trainer.model.inputs = rounded
    trainer.model.compile_parts()


WAYS: dict[str, Callable[[Trainer], None]] = {
    RECIPE: recipe,
    "ours": ours,
    "large chunks": ours,
    "whole model": whole_model,
}
if ON_GPU:
    WAYS |= {"kernel": kernel, "max-autotune": max_autotune}


def run(way: str, trainer: Trainer) -> float:
    """Do some steps, and return their seconds."""
    cross_entropy.CHUNK[DEVICE.type] = LARGE_CHUNK if way == "large chunks" else CHUNK
    started = time.perf_counter()
    for _ in range(STEPS):
        trainer.train_step()
    trainer.read(stop=False)  # waits for the device
    return time.perf_counter() - started


plan = read_plan(Path(sys.argv[1]))
cell = next(iter(plan.cells.values()))
if cell.training.precision == "bf16":
    WAYS["bf16 stream"] = bf16_stream
execution = plan.study.execution.model_copy(update={"compile": False})
trainers = {way: Trainer(cell, execution, Group(DEVICE)) for way in WAYS}
for way, change in WAYS.items():
    change(trainers[way])
    print(f"{way}: first steps {run(way, trainers[way]):.1f} s", flush=True)
rows = []
for _ in range(TURNS):
    turn = dict.fromkeys(WAYS, 0.0)
    for way in [*WAYS, *reversed(WAYS)]:
        turn[way] += run(way, trainers[way]) / 2
    rows.append(turn)
seconds = DataFrame(rows)
losses = DataFrame({way: trainer.losses for way, trainer in trainers.items()})
n_tokens = STEPS * cell.training.batch_sequences * cell.training.seq_len
for way in WAYS:
    gain = np.log(seconds[RECIPE] / seconds[way])
    interval = ttest_1samp(gain, 0).confidence_interval()
    low, high = np.exp([interval.low, interval.high])
    far = (losses[way] / losses[RECIPE] - 1).abs().max()
    print(
        f"{way:<17} {n_tokens / seconds[way].median():>9,.0f} tokens/s,"
        f" ratio {np.exp(gain.mean()):.3f} ({low:.3f} to {high:.3f}),"
        f" losses of {len(losses)} steps within {far:.1e}"
    )
