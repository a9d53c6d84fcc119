"""These checks ask whether larger models fit, and what evaluation and
two cells take."""

import time

import torch
from gpu_checks.common import At, Row, Rows, record, roofline, step_log, zipf_tokens
from gpu_checks.fast import PAPER
from gpu_checks.right import requests

from coupled_adam_bench.evaluation.held_out_loss import all_starts, mean_loss, windows_at
from coupled_adam_bench.evaluation.scoring import Scorer
from coupled_adam_bench.study.plan.cells import Cell

# The paper's batches; of 1.3B the share of one of its eight GPUs.
SIZES = {
    "gpt2-355m": PAPER,
    "gpt2-760m": PAPER,
    "stablelm-1.3b": {"seq_len": 2048, "batch_sequences": 32},
}


def sizes(at: At) -> Rows:
    """Training steps of three models, one after the other in one process."""
    for name, training in SIZES.items():
        cell = at.cell(name, training, {"compile": True, "micro_batch_sequences": "auto"})
        yield from _steps(at, name, cell)
        at.forget()


def _steps(at: At, name: str, cell: Cell) -> Rows:
    begun = time.perf_counter()
    with at.trainer(cell) as trainer:
        micro = trainer.micro_batch_sequences
        trainer.train_step(0)[0].item()
        yield Row(f"{name}, seconds to the first step", time.perf_counter() - begun)
        yield Row(f"{name}, sequences of a micro-batch", micro)
        trainer.train_step(1)
        steps = iter(range(2, 100))
        found = at.seconds(lambda: trainer.train_step(next(steps)), at.size(5, 1))
        log = step_log(cell, micro, 1000 * found)
        yield record(f"{name}, step, ms", 1000 * found, log=log if at.on_gpu else None)
        execution = cell.study.execution.model_copy(update={"micro_batch_sequences": micro})
        counted = sum(roofline(cell, execution).values())
        yield Row(f"{name}, step relative to the count", found / counted)
        peak = at.peak_bytes(lambda: trainer.train_step(next(steps)))
        yield record(f"{name}, GB", peak / 1e9)
        if at.on_gpu:  # what the allocator holds and no tensor uses
            yield Row(f"{name}, reserved relative to used", torch.cuda.memory_reserved() / peak)


def evaluation(at: At) -> Rows:
    """Test loss and log-likelihoods of tasks with 125M, in both precisions."""
    cell = at.cell("gpt2-125m", PAPER, {})
    model = at.model(cell, 0.02).eval()
    tokens = zipf_tokens(at.size(2_000_000, 500), cell.vocab_size, 0)
    found = requests(at.size(1000, 3), at.size(120, 8), at.size(30, 3), cell.vocab_size)
    for bf16 in (False, True):
        name = "bf16" if bf16 else "fp32"
        for _ in range(2):  # the first is a warm-up
            begun = time.perf_counter()
            starts = all_starts(len(tokens), cell.training.seq_len)
            mean_loss(
                model, windows_at(tokens, starts, cell.training.seq_len, 16), str(at.device), bf16
            )
            loss_seconds = time.perf_counter() - begun
        yield Row(f"test loss {name}, tokens a second", len(tokens) / loss_seconds)
        scorer = Scorer(model, cell.training.seq_len, 16 * cell.training.seq_len, bf16)
        scorer.score(found[:40])
        begun = time.perf_counter()
        scorer.score(found)
        yield Row(
            f"tasks {name}, questions of four answers a second",
            len(found) / 4 / (time.perf_counter() - begun),
        )
