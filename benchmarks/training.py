"""Compares training steps of our Trainer with those of a plain reference loop that has the same
loss curve.

Prints JSON: tokens/s of both, the medians of their ratio over blocks of steps by the clock and by
CPU time, MFU, peak memory, and the largest relative difference of the losses. On a machine that
others use, CPU time is the fairer measure. The reference is a simple script: all logits and
torch.nn.functional.cross_entropy, clip_grad_norm_ and torch.optim.AdamW, with --threads threads and
the system's allocator settings. On a CPU it is eager with PyTorch's defaults. On a GPU it is
nanoGPT's published recipe: a compiled model, fused AdamW, bf16 autocast and TF32. Ours is one
process per GPU, or --processes of --threads / --processes threads each, with the allocator settings
of rules/common.smk. The two run in separate processes. On a CPU they take turns, since others may
use the machine. On a GPU they run one after the other, each with the whole memory.

With --bf16 the reference is our own loop in fp32, and the number and bytes of the casts of a step
between fp32 and bf16 are printed too, those in torch's kernels included.

    python benchmarks/training.py [--cases NAME ...] [--blocks 7] [--bf16] [--out FILE]
"""

import argparse
import contextlib
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from allocator import SETTINGS
from gpu_checks.reference import Step, reference_step
from torch.profiler import ProfilerActivity, profile

from coupled_adam_bench.data.prepare import prepare
from coupled_adam_bench.machine.device import pick_device
from coupled_adam_bench.machine.surroundings import LAUNCHER
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.settings import parse_study
from coupled_adam_bench.training.distributed import open_group
from coupled_adam_bench.training.monitor import peak_flops, peak_memory_bytes
from coupled_adam_bench.training.trainer import Trainer

# A block counts if other processes keep at most _QUIET CPUs busy; at most _MOST blocks are tried
# for each one wanted.
_QUIET, _MOST = 0.15, 8
# The names of dtypes in torch's traces, and the bytes of an element.
_CAST = {"float": 4, "c10::BFloat16": 2}
SMALL = {"name": "gpt2-4x128", "n_layer": 4, "n_head": 4, "d_model": 128, "learning_rate": 1e-3}


class Case(NamedTuple):
    """A model and its global batch; ``micro`` is the reference's micro-batch size in sequences."""

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
        "v2048-16x128": Case(SMALL, 2048, 16, 128, "fp32", 2, 16),
        "v8192-16x128": Case(SMALL, 8192, 16, 128, "fp32", 1, 16),
        "v2048-32x128": Case(SMALL, 2048, 32, 128, "fp32", 2, 32),
        "v2048-16x256": Case(SMALL, 2048, 16, 256, "fp32", 2, 16),
        "v2048-64x128": Case(SMALL, 2048, 64, 128, "fp32", 1, 64),
        "v50304-8x128": Case(SMALL, 50304, 8, 128, "fp32", 1, 8),
    },
    # The paper's batches [P]; the authors' micro-batch of 12 sequences [C], and about as many
    # tokens at large scale.
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
            # as for the other matrices, since the reference has one optimizer
            "embedding_weight_decay": 0.1,
        },
        "grid": [
            {"models": [name], "tokens": [{"steps": 10_000}], "optimizers": ["adamw"], "seeds": [1]}
        ],
        "execution": execution,
    }
    return make_plan(parse_study(values))


def busy_seconds() -> float | None:
    """Return the busy time of all CPUs since the machine's start; ``None`` if the system does not
    report it."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, stat.read_text().split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def peak_rate(device: torch.device) -> float | None:
    """Return the dense bf16 peak of a known GPU, or the best measured rate of a float32 product on
    a CPU."""
    if device.type == "cuda":
        return peak_flops(device)
    factor = torch.rand(1024, 1024)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        factor @ factor
        seconds.append(time.perf_counter() - start)
    return 2 * 1024**3 / min(seconds)


def casts(step: Step, number: int, folder: Path) -> tuple[torch.Tensor, dict[str, int]]:
    """Do a step, and return its loss and its casts between fp32 and bf16: how many there are, and
    what they read and write."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        loss = step(number)[0]
    trace = folder / "trace.json"
    profiled.export_chrome_trace(str(trace))
    found = {"number": 0, "bytes": 0}
    for event in json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]:
        if event["name"] != "aten::copy_":
            continue
        types = event["args"]["Input type"][:2]
        if sorted(types) == sorted(_CAST):
            found["number"] += 1
            found["bytes"] += sum(_CAST.values()) * math.prod(event["args"]["Input Dims"][0])
    return loss, found


def work(setting: dict[str, Any], folder: Path) -> None:
    """For each number on standard input, do that many steps and print seconds, losses and peak
    memory."""
    torch.set_num_threads(setting["threads"])
    plan = make_case(Case(*setting["case"]), setting["execution"])
    cell = next(iter(plan.cells.values()))
    execution = cell.study.execution
    with open_group(setting["device"]) as group:
        step: Step
        if setting["ours"]:
            step = Trainer(cell, execution, folder / "data", folder / "run", group).train_step
        else:
            step = reference_step(cell, folder / "data", setting["case"][-1], group.device)
        done, found = 0, None
        for line in sys.stdin:
            start, start_cpu = time.perf_counter(), time.process_time()
            numbers = list(range(done, done + int(line)))
            losses = []
            if done == 0 and setting["casts"]:
                # The first block is a warmup, so its times do not count.
                loss, found = casts(step, numbers.pop(0), folder)
                losses.append(loss)
            losses += [step(number)[0] for number in numbers]
            done += int(line)
            mean = group.sum(torch.stack(losses).double()) / group.size
            values = mean.tolist()  # this synchronizes
            seconds = time.perf_counter() - start
            answer = {
                "seconds": seconds,
                "peak_flops": None if setting["ours"] else peak_rate(group.device),
                "cpu_seconds": time.process_time() - start_cpu,
                "losses": values,
                "peak_bytes": peak_memory_bytes(group.device),
                "casts": found,
            }
            print(json.dumps(answer), flush=True)


class Workers:
    """The worker processes of one of the two loops."""

    def __init__(
        self, setting: dict[str, Any], folder: Path, processes: int, environment: dict[str, str]
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, __file__, "--worker", json.dumps(setting), str(folder)]
        self.processes = []
        for rank in range(processes):
            group = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": processes,
                "MASTER_PORT": port,
                LAUNCHER: 100,
            }
            variables = (
                environment
                | {"MASTER_ADDR": "127.0.0.1"}
                | {name: str(n) for name, n in group.items()}
            )
            self.processes.append(
                subprocess.Popen(
                    command, env=variables, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )

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
def loops(
    names: Sequence[str], case: Case, arguments: argparse.Namespace, folder: Path
) -> Iterator[dict[str, Workers]]:
    """Yield the workers of the named loops, ``reference`` and ``ours``, and end them."""
    device, processes = pick_device(arguments.device), arguments.processes
    execution: dict[str, Any] = {
        "train_threads": max(1, arguments.threads // processes),
        "compile": arguments.compile,
    }
    if device == "cuda":
        execution |= {"gpus": processes, "micro_batch_sequences": "auto"}
    else:
        execution |= {"train_processes": processes}
    cell = next(iter(make_case(case, execution).cells.values()))
    prepare(cell.study, cell.data_id, folder / "data", 1)
    plain = {
        name: value
        for name, value in os.environ.items()
        if name not in SETTINGS and name != "OMP_NUM_THREADS"
    }
    environments = {
        "reference": plain | SETTINGS if arguments.same_allocator else plain,
        "ours": plain | SETTINGS | {"OMP_NUM_THREADS": str(execution["train_threads"])},
    }
    setting = {"case": case, "execution": execution, "device": device}
    workers: dict[str, Workers] = {}
    try:
        for name in names:
            # In bf16 the reference is ours too, in fp32.
            ours, in_bf16 = name == "ours" or arguments.bf16, name == "ours" and arguments.bf16
            threads = execution["train_threads"] if ours else arguments.threads
            own = case._replace(precision="bf16") if in_bf16 else case
            each = setting | {"ours": ours, "threads": threads, "case": own, "casts": in_bf16}
            environment = environments["ours" if ours else name]
            workers[name] = Workers(each, folder, processes if ours else 1, environment)
        yield workers
    finally:
        for each in workers.values():
            each.end()


def block(workers: Workers, n_steps: int) -> tuple[list[dict[str, Any]], float]:
    """Run ``n_steps`` steps; return the workers' answers and the number of CPUs that other
    processes kept busy."""
    before, start = busy_seconds(), time.perf_counter()
    answers = workers.steps(n_steps)
    seconds, after = time.perf_counter() - start, busy_seconds()
    if before is None or after is None:
        return answers, 0.0
    return answers, (after - before - sum(answer["cpu_seconds"] for answer in answers)) / seconds


def measure(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    cell = next(iter(make_case(case, {}).cells.values()))
    n_steps = arguments.steps or case.steps
    flops = cell.model.flops_per_token(case.vocab_size, case.seq_len)
    losses: dict[str, list[float]] = {"reference": [], "ours": []}
    peak_bytes: dict[str, int] = {}
    peaks: list[float] = []
    casts_of_step: dict[str, int] | None = None
    blocks: list[dict[str, float]] = []

    def run(workers: Workers, loop: str, row: dict[str, float]) -> None:
        nonlocal casts_of_step
        answers, others = block(workers, n_steps)
        losses[loop] += answers[0]["losses"]
        casts_of_step = answers[0]["casts"] or casts_of_step
        peak_bytes[loop] = sum(answer["peak_bytes"] for answer in answers)
        seconds = max(answer["seconds"] for answer in answers)
        row[loop] = n_steps * case.batch_sequences * case.seq_len / seconds
        row[f"{loop}_cpu"] = sum(answer["cpu_seconds"] for answer in answers) / n_steps
        row["quiet"] = row.get("quiet", True) and others < _QUIET
        peaks.extend(filter(None, [answers[0]["peak_flops"]]))

    with tempfile.TemporaryDirectory() as name:
        if pick_device(arguments.device) == "cuda":
            blocks += [{} for _ in range(1 + arguments.blocks)]
            for loop in losses:
                with loops([loop], case, arguments, Path(name)) as workers:
                    for row in blocks:
                        run(workers[loop], loop, row)
        else:
            with loops(list(losses), case, arguments, Path(name)) as workers:
                while (
                    len(blocks) <= _MOST * arguments.blocks
                    and sum(b["quiet"] for b in blocks[1:]) < arguments.blocks
                ):
                    blocks.append({})
                    for loop in (
                        ("reference", "ours") if len(blocks) % 2 == 0 else ("ours", "reference")
                    ):
                        run(workers[loop], loop, blocks[-1])
    measured = blocks[1:]  # the first block is a warmup
    quiet = [row for row in measured if row["quiet"]] or measured
    speeds = {loop: statistics.median(row[loop] for row in quiet) for loop in losses}
    peak, gpus = (
        max(peaks, default=None),
        arguments.processes if pick_device(arguments.device) == "cuda" else 1,
    )
    pairs = list(zip(losses["ours"], losses["reference"], strict=True))
    return {
        "case": case._asdict(),
        "casts_per_step": casts_of_step,
        "blocks": len(measured),
        "quiet_blocks": sum(row["quiet"] for row in measured),
        "tokens_per_second": speeds,
        "ratio": statistics.median(row["ours"] / row["reference"] for row in quiet),
        "cpu_seconds_per_step": {
            loop: statistics.median(row[f"{loop}_cpu"] for row in measured) for loop in losses
        },
        "cpu_ratio": statistics.median(row["reference_cpu"] / row["ours_cpu"] for row in measured),
        "flops_per_token": flops,
        "peak_flops": peak,
        "mfu": {
            "reference": peak and flops * speeds["reference"] / peak,
            "ours": peak and flops * speeds["ours"] / (peak * gpus),
        },
        "peak_bytes": peak_bytes,
        "peak_bytes_ratio": peak_bytes["ours"] / peak_bytes["reference"],
        "max_relative_loss_difference": max(
            abs(ours - reference) / reference for ours, reference in pairs
        ),
        "all_blocks": measured,
        "losses": losses,
    }


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        work(json.loads(sys.argv[2]), Path(sys.argv[3]))
        return
    names = [name for cases in CASES.values() for name in cases]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--cases", nargs="+", choices=names, help="default: all of the device")
    parser.add_argument(
        "--blocks", type=int, default=7, help="measured blocks of steps of each loop (default 7)"
    )
    parser.add_argument("--steps", type=int, help="steps of a block (default: the case's own)")
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        help="of ours, on a GPU machine as many GPUs (default 1)",
    )
    parser.add_argument(
        "--threads", type=int, default=2, help="threads of the reference, and of ours together"
    )
    parser.add_argument("--compile", action="store_true", help="execution.compile of ours")
    parser.add_argument(
        "--bf16", action="store_true", help="our loop in bf16 against our loop in fp32"
    )
    parser.add_argument(
        "--same-allocator", action="store_true", help="our allocator settings for the reference too"
    )
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
