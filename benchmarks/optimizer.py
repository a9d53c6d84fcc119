"""Measures time and memory of an optimizer step on an embedding matrix, relative to
``torch.optim.AdamW(fused=True)``.

It compares Coupled Adam with torch's own operations, Coupled Adam as one kernel (by torch.compile
on a CPU, by Triton on a GPU), the paper's form with a second moment per element, and Ember.
``step`` is a step alone, ``clip_step`` a step with clipping before it, whose column sums Coupled
Adam reuses, and ``step_after_clip`` what a step adds to clipping. On a CPU each time is CPU time,
on a GPU that of 50 calls, which are queued between two events. All optimizers take turns in one
process, and ratios are medians over the rounds. ``parts`` has what Coupled Adam must read before
its update, without clipping: the column sums, and ``torch.sum``, which does nothing but read.
``operations`` are the calls of torch in a step with clipping, those that give a view left out: on a
GPU about as many launches, but a kernel of Triton counts as none. Prints JSON.

    python benchmarks/optimizer.py
    python benchmarks/optimizer.py --shapes 50304x768 --dtypes bfloat16 --threads 1
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_checks.common import seconds
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from coupled_adam.update import sums_of_squares
from coupled_adam_bench.machine.device import pick_device
from coupled_adam_bench.optim import CoupledAdam
from coupled_adam_bench.optim.ember import Ember

SETTINGS: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
REFERENCE = "adamw_fused"
QUEUED = 50
"""Calls on a GPU that are timed together."""


class FullCoupledAdam(torch.optim.Optimizer):
    """The paper's rule as written: a second moment per element, averaged over the rows at each
    step."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state |= {
                        "step": 0,
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }
                state["step"] += 1
                state["exp_avg"].lerp_(parameter.grad, 1 - beta1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(
                    parameter.grad, parameter.grad, value=1 - beta2
                )
                mean = state["exp_avg_sq"].mean(0, keepdim=True)
                root = (
                    (mean / (1 - beta2 ** state["step"]))
                    .sqrt_()
                    .add_(group["eps"])
                    .expand_as(parameter)
                )
                parameter.addcdiv_(
                    state["exp_avg"], root, value=-group["lr"] / (1 - beta1 ** state["step"])
                )


def build(name: str, parameter: nn.Parameter) -> torch.optim.Optimizer:
    match name:
        case "adamw_fused":
            return torch.optim.AdamW([parameter], **SETTINGS, fused=True)
        case "ember":
            return Ember([parameter], lr=SETTINGS["lr"])
        case "full_coupled_adam":
            return FullCoupledAdam([parameter], SETTINGS)
        case _:
            return CoupledAdam([parameter], **SETTINGS, fused=name == "coupled_adam_fused")


def clip(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> None:
    # The limit of 1e9 is never reached, so clipping reads the gradient and multiplies it by 1, as
    # it does in training.
    if isinstance(optimizer, CoupledAdam):
        optimizer.clip_grad_norm_([parameter], 1e9)
    else:
        torch.nn.utils.clip_grad_norm_([parameter], 1e9)


def clip_and_step(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> None:
    clip(optimizer, parameter)
    optimizer.step()


def cost(device: torch.device, function: Callable[[], object]) -> float:
    """Return the seconds of a call: on a GPU of one of those that are queued, on a CPU of all
    threads."""
    if device.type != "cpu":
        return seconds(device, function, QUEUED)
    start = time.process_time()
    function()
    return time.process_time() - start


class Operations(TorchDispatchMode):
    """Counts the operations of torch that are called, without those that give a view."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), settings: Any = None
    ) -> Any:
        tensors = [each for each in function._schema.arguments if "Tensor" in str(each.type)]
        aliases = [each.alias_info for each in tensors if each.alias_info is not None]
        is_view = any(not alias.is_write for alias in aliases)
        self.number += function.namespace == "aten" and bool(tensors) and not is_view
        return function(*arguments, **(settings or {}))


def ratio(values: list[float], reference: list[float]) -> float:
    """Return the median ratio over the rounds, without the first two, which warm up."""
    pairs = list(zip(values, reference, strict=True))[2:]
    return round(statistics.median(a / b for a, b in pairs), 3)


def measure(
    shape: tuple[int, int], dtype: torch.dtype, device: torch.device, rounds: int
) -> dict[str, Any]:
    names = [REFERENCE, "full_coupled_adam", "coupled_adam", "coupled_adam_fused", "ember"]
    gradient = torch.randn(shape, device=device).to(dtype)
    optimizers = {}
    for name in names:
        parameter = nn.Parameter(torch.randn(shape, device=device).to(dtype))
        parameter.grad = gradient.clone()
        optimizers[name] = (build(name, parameter), parameter)
    times: dict[str, dict[str, list[float]]] = {
        name: {"step": [], "clip_step": [], "step_after_clip": []} for name in names
    }
    parts = {
        "column_sums": partial(sums_of_squares, gradient, 0),
        "one_reading": partial(torch.sum, gradient),
    }
    times_of_parts: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(rounds + 2):
        for name, part in parts.items():
            times_of_parts[name].append(cost(device, part))
        for name, (optimizer, parameter) in optimizers.items():
            step = cost(device, optimizer.step)
            clipping = cost(device, partial(clip, optimizer, parameter))
            both = cost(device, partial(clip_and_step, optimizer, parameter))
            for what, value in (
                ("step", step),
                ("clip_step", both),
                ("step_after_clip", both - clipping),
            ):
                times[name][what].append(value)
    operations = {}
    for name, (optimizer, parameter) in optimizers.items():
        with Operations() as counted:
            clip_and_step(optimizer, parameter)
        operations[name] = counted.number
    result: dict[str, Any] = {"parts": {}}
    for name, values in times_of_parts.items():
        result["parts"][f"{name}_ratio"] = ratio(values, times[REFERENCE]["step"])
    for name, (optimizer, _) in optimizers.items():
        tensors = {
            key: value.numel() * value.element_size()
            for state in optimizer.state.values()
            for key, value in state.items()
            if isinstance(value, Tensor)
        }
        (state,) = optimizer.state.values()
        numbers = sum(value.numel() for key, value in state.items() if key.endswith("avg_sq"))
        entry: dict[str, Any] = {
            "second_moment_numbers": numbers,
            "state_bytes": sum(tensors.values()),
            "operations": operations[name],
        }
        for what, values in times[name].items():
            reference = times[REFERENCE][what]
            entry[f"{what}_ms"] = round(1e3 * statistics.median(values[2:]), 3)
            entry[f"{what}_ratio"] = ratio(values, reference)
        result[name] = entry
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shapes", nargs="+", default=["50304x768", "50304x2560"], help="rows x columns"
    )
    parser.add_argument(
        "--dtypes", nargs="+", default=["float32", "bfloat16"], choices=("float32", "bfloat16")
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = torch.device(pick_device(arguments.device))
    measurements = {}
    for text in arguments.shapes:
        rows, columns = map(int, text.split("x"))
        for dtype in arguments.dtypes:
            measurements[f"{text} {dtype}"] = measure(
                (rows, columns), getattr(torch, dtype), device, arguments.rounds
            )
    text = json.dumps(
        {
            "device": str(device),
            "threads": arguments.threads,
            "torch": torch.__version__,
            "cases": measurements,
        },
        indent=1,
    )
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
