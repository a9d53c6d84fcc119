"""Measures what the settings of the head cost in a step of training, relative to a step without any
of them, and with ``--ways`` how long the loss of a head takes in several ways.

A step is the loss of random hidden states with its backward pass, clipping, and AdamW on the head's
matrix. So the layers of a model, which these settings do not touch, are left out, and the ratios
are upper bounds for whole models. All settings take turns in one process, whose CPU time is
counted; ratios are medians over the rounds. It prints Markdown.

The ways are the one that trains today, our kernel (``loss_kernel``, on a GPU), ``F.cross_entropy``,
and ``F.linear_cross_entropy`` of PyTorch 2.13, whole and in chunks. Each computes the loss and its
gradients in hidden states and matrix. On a GPU, ``gpu_proof.py --only head`` measures them.

    python benchmarks/head.py [--vocab-size 50304] [--d-model 128] [--tokens 1024] [--threads 1]
    [--rounds 7] [--ways]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coupled_adam_bench.models.cross_entropy import by_log_softmax, sum_with_z_loss
from coupled_adam_bench.optim.build import Optimizers, build_embedding_optimizer
from coupled_adam_bench.study.settings import AdamWSettings, Training

SETTINGS: dict[str, dict[str, object]] = {
    "none": {},
    "mu_centering": {"mu_centering": True},
    "mu_loss": {"mu_loss": 0.1},
    "z_loss": {"z_loss": 1e-4},
    "soft_cap": {"soft_cap": 30.0},
}


Way = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function of hidden states TD, matrix VD and targets T that returns the sum of the losses."""
TODAY = "today's"


def ways(on_gpu: bool) -> dict[str, Way]:
    """Return the ways to a loss, today's first, under autocast to bfloat16 on a GPU."""
    softmax = torch.compile(by_log_softmax, dynamic=False) if on_gpu else None

    def by_torch(hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> Tensor:
        return F.cross_entropy(hidden_TD @ weight_VD.T, targets_T, reduction="sum")

    found: dict[str, Way] = {
        TODAY: lambda *head: sum_with_z_loss(*head, 0.0, None, softmax)[0],
        "F.cross_entropy": torch.compile(by_torch, dynamic=False) if on_gpu else by_torch,
    }
    if on_gpu and find_spec("triton") is not None:
        from coupled_adam_bench.models.loss_kernel import by_kernel

        found["our kernel"] = lambda *head: sum_with_z_loss(*head, 0.0, chunk_loss=by_kernel)[0]
    linear = getattr(F, "linear_cross_entropy", None)
    if linear is not None:
        options = {"whole": None, "in chunks": nn.LinearCrossEntropyOptions()}
        for name, chosen in options.items():
            found[f"F.linear_cross_entropy, {name}"] = _linear(linear, chosen, on_gpu)
    return found


def _linear(linear: Callable[..., Tensor], options: object, in_bf16: bool) -> Way:
    def loss(hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor) -> Tensor:
        # What it does under autocast is not documented, so it is given what autocast would.
        dtype = torch.bfloat16 if in_bf16 else hidden_TD.dtype
        return linear(
            hidden_TD.to(dtype), weight_VD.to(dtype), targets_T, reduction="sum", options=options
        )

    return loss


def make_way(
    way: Way, vocab_size: int, d_model: int, tokens: int, device: str
) -> Callable[[], Tensor]:
    """Return a function that computes a loss and its gradients in one way, and returns the mean."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, d_model, generator=generator).to(device).requires_grad_()
    weight = (torch.randn(vocab_size, d_model, generator=generator) * 0.02).to(device)
    weight.requires_grad_()
    targets = torch.randint(0, vocab_size, (tokens,), generator=generator).to(device)

    def step() -> Tensor:
        hidden.grad = weight.grad = None
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            mean = way(hidden, weight, targets) / tokens
        mean.backward()
        return mean.detach()

    return step


def make_step(name: str, vocab_size: int, d_model: int, tokens: int) -> Callable[[], object]:
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
    parser.add_argument("--ways", action="store_true", help="ways to the loss, not settings")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sizes = (arguments.vocab_size, arguments.d_model, arguments.tokens)
    if arguments.ways:
        steps = {name: make_way(way, *sizes, "cpu") for name, way in ways(False).items()}
    else:
        steps = {name: make_step(name, *sizes) for name in SETTINGS}
    reference = next(iter(steps))
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(arguments.rounds + 1):
        for name, step in steps.items():
            start = time.process_time()
            step()
            seconds[name].append(time.process_time() - start)
    print(
        f"vocabulary {sizes[0]}, width {sizes[1]}, {sizes[2]} tokens, {arguments.threads} thread,"
        f" {torch.__version__}\n"
    )
    print("| way | CPU time, ms | ratio |\n|---|---|---|")
    for name, times in seconds.items():
        ratio = statistics.median(
            a / b for a, b in zip(times[1:], seconds[reference][1:], strict=True)
        )
        median = 1e3 * statistics.median(times[1:])
        print(f"| {name} | {median:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
