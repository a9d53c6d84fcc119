"""Measures what the settings of the head cost in a step of training, relative to a step without any
of them.

A step is the loss of random hidden states with its backward pass, clipping, and AdamW on the head's
matrix. So the layers of a model, which these settings do not touch, are left out, and the ratios
are upper bounds for whole models. All settings take turns in one process, whose CPU time is
counted; ratios are medians over the rounds. It prints Markdown.

    python benchmarks/head.py [--vocab-size 50304] [--d-model 128] [--tokens 1024] [--threads 1]
    [--rounds 7]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from coupled_adam_bench.models.cross_entropy import sum_with_z_loss
from coupled_adam_bench.optim.build import Optimizers, build_embedding_optimizer
from coupled_adam_bench.study.config import AdamWSettings, Training

SETTINGS: dict[str, dict[str, object]] = {
    "none": {},
    "mu_centering": {"mu_centering": True},
    "mu_loss": {"mu_loss": 0.1},
    "z_loss": {"z_loss": 1e-4},
    "soft_cap": {"soft_cap": 30.0},
}


def make_step(name: str, vocab_size: int, d_model: int, tokens: int) -> Callable[[], None]:
    """Return a step with one of the settings."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, d_model, generator=generator, requires_grad=True)
    head = nn.Parameter(torch.randn(vocab_size, d_model, generator=generator) * 0.02)
    targets = torch.randint(0, vocab_size, (tokens,), generator=generator)
    settings = AdamWSettings.model_validate({"name": "adamw", **SETTINGS[name]})
    adamw = build_embedding_optimizer([head], settings, Training(), 1e-3)
    optimizers = Optimizers({"embedding": adamw}, head, settings)

    def step() -> None:
        objective, _ = sum_with_z_loss(hidden, head, targets, settings.z_loss, settings.soft_cap)
        (objective / tokens).backward()
        optimizers.add_mu_loss_gradient()
        optimizers.clip_grad_norm_([head], 1.0)
        optimizers.step()
        optimizers.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocab-size", type=int, default=50304)
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sizes = (arguments.vocab_size, arguments.d_model, arguments.tokens)
    steps = {name: make_step(name, *sizes) for name in SETTINGS}
    seconds: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for _ in range(arguments.rounds + 1):
        for name, step in steps.items():
            start = time.process_time()
            step()
            seconds[name].append(time.process_time() - start)
    print(
        f"vocabulary {sizes[0]}, width {sizes[1]}, {sizes[2]} tokens, {arguments.threads} thread,"
        f" {torch.__version__}\n"
    )
    print("| setting | CPU time, ms | ratio |\n|---|---|---|")
    for name, times in seconds.items():
        ratio = statistics.median(
            a / b for a, b in zip(times[1:], seconds["none"][1:], strict=True)
        )
        median = 1e3 * statistics.median(times[1:])
        print(f"| {name} | {median:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
