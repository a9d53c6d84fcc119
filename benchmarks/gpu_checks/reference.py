"""The plain loop that ours is compared with: on a GPU nanoGPT's published recipe, written anew."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from coupled_adam_bench.data.bins import open_tokens
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.plan.schedule import learning_rate_factor
from coupled_adam_bench.training.order import WindowOrder

Step = Callable[[int], tuple[Tensor, Any]]
"""Does a step of training and returns the mean loss of its batch."""


def reference_step(cell: Cell, data: Path, micro: int, device: torch.device) -> Step:
    """Return the training step of a plain loop, which shares model, weights, batches and settings
    with ours."""
    training, on_gpu = cell.training, device.type == "cuda"
    tokens = torch.from_numpy(open_tokens(data, "train").astype("int64"))
    order = WindowOrder(len(tokens), training, cell.seed)
    with device:
        model = build_model(cell.model, cell.vocab_size, training.seq_len)
    model.init_weights(cell.seed, training.init_std)
    groups = [
        {
            "params": [p for p in model.parameters() if p.ndim >= 2],
            "weight_decay": training.weight_decay,
        },
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (training.beta1, training.beta2)
    optimizer = torch.optim.AdamW(groups, betas=betas, eps=training.eps, fused=on_gpu or None)

    def mean_loss(windows: Tensor) -> Tensor:
        return F.cross_entropy(
            model.logits(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()
        )

    if on_gpu:
        torch.set_float32_matmul_precision("high")  # TF32, as in the Trainer
        torch.compiler.reset()  # or another micro-batch would be compiled for any size
        mean_loss = torch.compile(mean_loss)

    def step(number: int) -> tuple[Tensor, None]:
        for group in optimizer.param_groups:
            peak = cell.model.learning_rate
            group["lr"] = peak * learning_rate_factor(number, cell.steps, training, peak)
        starts = order.starts(number).tolist()
        loss = torch.zeros((), device=device)
        for begin in range(0, len(starts), micro):
            micro_starts = starts[begin : begin + micro]
            windows = torch.stack(
                [tokens[start : start + training.seq_len + 1] for start in micro_starts]
            )
            windows = (windows.pin_memory() if on_gpu else windows).to(device, non_blocking=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=training.precision == "bf16"):
                micro_loss = mean_loss(windows) * len(micro_starts) / len(starts)
            micro_loss.backward()
            loss += micro_loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        return loss, None

    return step
