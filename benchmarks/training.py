"""Training steps of the project's own Trainer against a plain reference loop, in turn, with the same loss curve.

Prints JSON: tokens/s of both, the median over blocks of steps of their ratio, MFU, peak memory, and the largest relative
difference of the losses. The reference is what a simple script does: the eager model, all logits and
torch.nn.functional.cross_entropy, clip_grad_norm_ and torch.optim.AdamW as PyTorch sets it up, with --threads threads
and the system's own allocator settings. Ours is one process per GPU, or --processes of --threads / --processes threads
each, with the allocator settings of rules/common.smk. Both run as processes of their own and wait while the other works.

    python benchmarks/training.py [--cases NAME ...] [--blocks 7] [--out FILE]
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from allocator import SETTINGS
from torch import Tensor
from torch.nn import functional as F

from coupled_adam_bench.cells import Cell
from coupled_adam_bench.config import parse_study
from coupled_adam_bench.data.bins import open_tokens
from coupled_adam_bench.data.prepare import prepare
from coupled_adam_bench.device import pick_device
from coupled_adam_bench.files import read_json
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.optim.schedule import learning_rate_factor
from coupled_adam_bench.plan import Plan, make_plan
from coupled_adam_bench.training.distributed import open_group
from coupled_adam_bench.training.monitor import peak_flops, peak_memory_bytes
from coupled_adam_bench.training.order import WindowOrder
from coupled_adam_bench.training.trainer import Trainer

SMALL = {"name": "gpt2-4x128", "n_layer": 4, "n_head": 4, "d_model": 128, "learning_rate": 1e-3}
Step = Callable[[int], tuple[Tensor, Any]]


class Case(NamedTuple):
    """A model and its global batch; ``micro`` are the sequences that the reference takes at once."""

    model: str | dict[str, Any]
    vocab_size: int
    batch_sequences: int
    seq_len: int
    precision: str
    steps: int
    micro: int


CASES = {
    "cpu": {
        "v2048-8x128": Case(SMALL, 2048, 8, 128, "fp32", 8, 8),
        "v2048-32x128": Case(SMALL, 2048, 32, 128, "fp32", 2, 32),
        "v2048-16x256": Case(SMALL, 2048, 16, 256, "fp32", 2, 16),
        "v50304-8x128": Case(SMALL, 50304, 8, 128, "fp32", 1, 8),
    },
    # The paper's batches [P]; the authors' micro-batch of 12 sequences [C], the same tokens at the large scale.
    "cuda": {
        name: Case(name, 50304, batch, seq_len, "bf16", 2, micro)
        for name, batch, seq_len, micro in (
            ("gpt2-125m", 96, 1024, 12),
            ("gpt2-355m", 96, 1024, 12),
            ("gpt2-760m", 96, 1024, 12),
            ("stablelm-1.3b", 256, 2048, 4),
            ("stablelm-2.6b", 256, 2048, 4),
        )
    },
}


def make_case(case: Case, execution: dict[str, Any]) -> Plan:
    name = case.model if isinstance(case.model, str) else case.model["name"]
    values = {
        "study": "benchmark",
        "data": {
            "name": "synthetic",
            "source": {"kind": "synthetic", "n_tokens": 2_000_000},
            "tokenizer": "word",
            "vocab_size": case.vocab_size,
            "split": {"val_fraction": 0.02, "test_fraction": 0.02},
        },
        "models": [case.model],
        "training": {
            "seq_len": case.seq_len,
            "batch_sequences": case.batch_sequences,
            "precision": case.precision,
            "embedding_weight_decay": 0.1,  # as of the other matrices, for the reference's one optimizer
        },
        "grid": [{"models": [name], "tokens": [{"steps": 10_000}], "optimizers": ["adamw"], "seeds": [1]}],
        "execution": execution,
    }
    return make_plan(parse_study(values))


def reference_step(cell: Cell, data: Path, micro: int, device: torch.device) -> Step:
    """Return the training step of a plain loop: same weights, batches, recipe and model code as ours, nothing shared."""
    training = cell.training
    tokens = torch.from_numpy(open_tokens(data, "train").astype("int64"))
    order = WindowOrder(len(tokens), training, cell.seed)
    model = build_model(cell.model, cell.vocab_size, training.seq_len)
    model.init_weights(cell.seed, training.init_std)
    model.to(device)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": training.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(training.beta1, training.beta2), eps=training.eps)

    def step(number: int) -> tuple[Tensor, None]:
        for group in optimizer.param_groups:
            group["lr"] = cell.model.learning_rate * learning_rate_factor(number, cell.steps, training)
        starts = order.starts(number).tolist()
        loss = torch.zeros((), device=device)
        for begin in range(0, len(starts), micro):
            part = starts[begin : begin + micro]
            windows = torch.stack([tokens[start : start + training.seq_len + 1] for start in part]).to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=training.precision == "bf16"):
                logits = model.logits(windows[:, :-1])
                part_loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()) * len(part) / len(starts)
            part_loss.backward()
            loss += part_loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        return loss, None

    return step


def matmul_flops(device: torch.device) -> float:
    """Return the best rate of a float32 product of two 1024 x 1024 matrices, in FLOP/s."""
    factor = torch.rand(1024, 1024, device=device)
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        factor @ factor
        seconds.append(time.perf_counter() - start)
    return 2 * 1024**3 / min(seconds)


def work(setting: dict[str, Any], folder: Path) -> None:
    """Do as many steps as each line of standard input says, and answer with seconds, losses and peak memory."""
    torch.set_num_threads(setting["threads"])
    plan = make_case(Case(*setting["case"]), setting["execution"])
    cell, execution = next(iter(plan.cells.values())), plan.study.execution
    with open_group(setting["device"], execution.stall_seconds) as group:
        if group.device.type == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32, as the Trainer
        step: Step
        if setting["ours"]:
            step = Trainer(cell, execution, folder / "data", folder / "run", group).train_step
        else:
            step = reference_step(cell, folder / "data", setting["case"][-1], group.device)
        print(json.dumps({"matmul_flops": matmul_flops(group.device)}), flush=True)
        done = 0
        for line in sys.stdin:
            start = time.perf_counter()
            losses = [step(number)[0] for number in range(done, done + int(line))]
            done += int(line)
            mean = group.sum(torch.stack(losses).double()) / group.size
            values = mean.tolist()  # waits for the device
            answer = {"seconds": time.perf_counter() - start, "losses": values}
            print(json.dumps(answer | {"peak_bytes": peak_memory_bytes(group.device)}), flush=True)


class Workers:
    """The processes of one of the two loops."""

    def __init__(self, setting: dict[str, Any], folder: Path, processes: int, environment: dict[str, str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, __file__, "--worker", json.dumps(setting), str(folder)]
        self.processes = []
        for rank in range(processes):
            group = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
            variables = environment | {"MASTER_ADDR": "127.0.0.1"} | {name: str(n) for name, n in group.items()}
            self.processes.append(
                subprocess.Popen(command, env=variables, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
        self.ready = self._answers()

    def _answers(self) -> list[dict[str, Any]]:
        answers = []
        for process in self.processes:
            assert process.stdout is not None
            if not (line := process.stdout.readline()):
                raise RuntimeError("a worker has ended; its error is above")
            answers.append(json.loads(line))
        return answers

    def steps(self, number: int) -> list[dict[str, Any]]:
        for process in self.processes:
            assert process.stdin is not None
            print(number, file=process.stdin, flush=True)
        return self._answers()

    def end(self) -> None:
        for process in self.processes:
            process.communicate()


@contextlib.contextmanager
def both(case: Case, arguments: argparse.Namespace, folder: Path) -> Iterator[dict[str, Workers]]:
    device, processes = pick_device(arguments.device), arguments.processes
    execution: dict[str, Any] = {"train_threads": max(1, arguments.threads // processes), "compile": arguments.compile}
    if device == "cuda":
        execution |= {"gpus": processes, "micro_batch_sequences": "auto"}
    else:
        execution |= {"train_processes": processes}
    prepare(make_case(case, execution), folder / "data", 1)
    plain = {name: value for name, value in os.environ.items() if name not in SETTINGS and name != "OMP_NUM_THREADS"}
    product = plain | SETTINGS | {"OMP_NUM_THREADS": str(execution["train_threads"])}
    setting = {"case": case, "execution": execution, "device": device}
    workers: dict[str, Workers] = {}
    try:
        workers["reference"] = Workers(
            setting | {"ours": False, "threads": arguments.threads},
            folder,
            1,
            plain | SETTINGS if arguments.same_allocator else plain,
        )
        ours = setting | {"ours": True, "threads": execution["train_threads"]}
        workers["ours"] = Workers(ours, folder, processes, product)
        yield workers
    finally:
        for each in workers.values():
            each.end()


def measure(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    plan = make_case(case, {})
    cell = next(iter(plan.cells.values()))
    n_steps = arguments.steps or case.steps
    tokens = n_steps * case.batch_sequences * case.seq_len
    losses: dict[str, list[float]] = {"reference": [], "ours": []}
    speeds: dict[str, list[float]] = {"reference": [], "ours": []}
    peaks: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name, both(case, arguments, Path(name)) as workers:
        matmul = workers["reference"].ready[0]["matmul_flops"]
        for block in range(arguments.blocks + 1):
            for loop in ("reference", "ours") if block % 2 else ("ours", "reference"):
                answers = workers[loop].steps(n_steps)
                losses[loop] += answers[0]["losses"]
                peaks[loop] = sum(answer["peak_bytes"] for answer in answers)
                if block:  # the first warms up
                    speeds[loop].append(tokens / max(answer["seconds"] for answer in answers))
    peak = peak_flops(torch.device("cuda")) if pick_device(arguments.device) == "cuda" else matmul
    median = {loop: statistics.median(values) for loop, values in speeds.items()}
    ratios = [ours / reference for ours, reference in zip(speeds["ours"], speeds["reference"], strict=True)]
    pairs = list(zip(losses["ours"], losses["reference"], strict=True))
    flops = cell.model.flops_per_token(case.vocab_size, case.seq_len)
    used = {loop: flops * speed / (peak * (arguments.processes if loop == "ours" else 1)) for loop, speed in median.items()} if peak else None
    return {
        "case": case._asdict(),
        "tokens_per_second": median,
        "best_tokens_per_second": {loop: max(values) for loop, values in speeds.items()},
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "flops_per_token": flops,
        "mfu": used,
        "peak_bytes": peaks,
        "peak_ratio": peaks["ours"] / peaks["reference"],
        "losses": losses,
        "max_relative_loss_difference": max(abs(ours - reference) / reference for ours, reference in pairs),
    }


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        work(json.loads(sys.argv[2]), Path(sys.argv[3]))
        return
    names = [name for cases in CASES.values() for name in cases]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--cases", nargs="+", choices=names, help="default: all of the device")
    parser.add_argument("--blocks", type=int, default=7, help="measured blocks of steps of each loop (default 7)")
    parser.add_argument("--steps", type=int, help="steps of a block (default: the case's own)")
    parser.add_argument("--processes", type=int, default=1, help="of ours, on a GPU machine as many GPUs (default 1)")
    parser.add_argument("--threads", type=int, default=2, help="threads of the reference, and of ours together")
    parser.add_argument("--compile", action="store_true", help="execution.compile of ours")
    parser.add_argument("--same-allocator", action="store_true", help="our allocator settings for the reference too")
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    arguments = parser.parse_args()
    cases = {name: case for each in CASES.values() for name, case in each.items()}
    chosen = arguments.cases or CASES[pick_device(arguments.device)]
    text = json.dumps({name: measure(cases[name], arguments) for name in chosen}, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
