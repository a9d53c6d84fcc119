"""The stage ``test_loss``: cross-entropy on the whole test split, each token but the first predicted exactly once.

B: sequences of a batch    T: tokens of a window
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench import paths
from coupled_adam_bench.cells import Cell
from coupled_adam_bench.data.bins import open_tokens
from coupled_adam_bench.device import pick_device
from coupled_adam_bench.evaluation.record import Evaluation, Evaluator, row
from coupled_adam_bench.plan import Plan

if TYPE_CHECKING:
    from coupled_adam_bench.models.gpt2 import GPT2


def windows(
    tokens: NDArray[np.integer[Any]], seq_len: int, batch_sequences: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield (inputs, targets) of shape (B, T) that cut tokens t_0 .. t_n into windows without overlap.

    Window i reads t[i T : i T + T] and predicts t[i T + 1 : i T + T + 1], so each of t_1 .. t_n is a target once, with
    between 1 and T tokens of context. What is left at the end is a batch of one shorter window. As in training, windows
    cross the ends of documents.
    """
    n_full = (len(tokens) - 1) // seq_len
    for first in range(0, n_full, batch_sequences):
        last = min(first + batch_sequences, n_full)
        chunk = tokens[first * seq_len : last * seq_len + 1].astype(np.int64)
        yield chunk[:-1].reshape(-1, seq_len), chunk[1:].reshape(-1, seq_len)
    rest = tokens[n_full * seq_len :].astype(np.int64)
    if len(rest) > 1:
        yield rest[None, :-1], rest[None, 1:]


def mean_loss(
    model: "GPT2", tokens: NDArray[np.integer[Any]], batch_sequences: int, device: str, bf16: bool = False
) -> tuple[float, int]:
    """Return the mean cross-entropy in nats per predicted token, summed in float64, and the number of those tokens.

    ``bf16``: autocast, on a GPU only. ``ValueError`` if there are fewer than two tokens.
    """
    import torch

    if len(tokens) < 2:
        raise ValueError(f"test split: {len(tokens)} token(s), at least 2 are needed; raise data.split.test_fraction")
    autocast = torch.autocast("cuda", torch.bfloat16) if bf16 and device.startswith("cuda") else nullcontext()
    sums = []
    with torch.inference_mode(), autocast:
        for inputs_BT, targets_BT in windows(tokens, model.seq_len, batch_sequences):
            batch = (torch.from_numpy(array).to(device) for array in (inputs_BT, targets_BT))
            sums.append(model(*batch, reduction="none").double().sum().item())
    return math.fsum(sums) / (len(tokens) - 1), len(tokens) - 1


def settings(plan: Plan) -> dict[str, Any]:
    """Return what can change the numbers beside the model, its context length and its data."""
    return {"split": "test", "windows": "all, without overlap", "precision": plan.study.training.precision}


@contextmanager
def open_evaluator(plan: Plan, device: str) -> Iterator[Evaluator]:
    """Yield the evaluator, with the test tokens opened once."""
    from coupled_adam_bench.models.export import load_model

    device = pick_device(device)
    tokens = open_tokens(paths.data_dir(plan.data_id), "test")
    bf16 = plan.study.training.precision == "bf16"

    def evaluate(cell: Cell, model: Path) -> Evaluation:  # noqa: ARG001 - the folder says everything
        batch_sequences = plan.study.execution.evaluation_batch_sequences
        loss, n_tokens = mean_loss(load_model(model, device), tokens, batch_sequences, device, bf16)
        return Evaluation([row("test", "loss", loss)], detail={"n_predicted_tokens": n_tokens, "device": device})

    yield evaluate
