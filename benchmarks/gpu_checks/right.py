"""These checks ask whether a GPU computes what it should: kernels, losses and gradients, training,
stops and scores.

Shapes: R rows, C columns of a matrix; B sequences, T tokens, D = d_model, V = vocab_size.
"""

import itertools
import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from coupled_adam_bench.evaluation.trees import TokenRequest
from gpu_checks.command import Command, reaches
from gpu_checks.common import At, Row, Rows, relative_error, write_tokens, zipf_tokens
from torch import Tensor, nn

from coupled_adam_bench.evaluation.scoring import Scorer
from coupled_adam_bench.machine.device import lacks_bf16
from coupled_adam_bench.models.base import LanguageModel
from coupled_adam_bench.models.cross_entropy import ChunkLoss
from coupled_adam_bench.models.export import save_model
from coupled_adam_bench.study.plan.cells import Cell

FP32, BF16_KERNEL = 1e-6, 2**-8
LIMITS = {"fp32": 1e-4, "bf16": 1e-2}
N_STEPS = (40, 3)
"""Steps of the check of optimizers, and of its rehearsal."""
N_DRAWS = 3
MOVED = {"fp32": 1e-7, "bf16": 2**-9}
"""How far initial weights are moved, relative to each: about what their precision rounds."""
SENSITIVITIES = 10.0
"""How many times as far as moved weights the rounding of other kernels may move a loss: it acts in
each step, and on gradients too."""
SMALL = {"name": "small", "n_layer": 2, "n_head": 2, "d_model": 128, "learning_rate": 1e-3}
RECIPE = {"seq_len": 128, "batch_sequences": 8, "warmup_steps": 10, "precision": "fp32"}
_GUARD = 64
"""Elements before and behind a matrix that no kernel may write."""


def kernels(at: At) -> Rows:
    """The kernels of Coupled Adam against float64, on 60 shapes."""
    from coupled_adam import triton_kernels

    n_rows = at.size((1, 2, 15, 16, 17, 129, 1000, 2049, 50257, 50304), (1, 17))
    n_columns = at.size((1, 5, 127, 128, 768, 1030), (5, 130))
    generator = torch.Generator(at.device).manual_seed(0)

    def guarded(shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        size = shape[0] * shape[1]
        buffer = torch.randn(size + 2 * _GUARD, generator=generator, device=at.device).to(dtype)
        return buffer, buffer[_GUARD : _GUARD + size].view(shape)

    for dtype, allowed in ((torch.float32, FP32), (torch.bfloat16, BF16_KERNEL)):
        worst, touched, differs = dict.fromkeys(_OF_KERNELS, 0.0), 0, 0
        for shape in itertools.product(n_rows, n_columns):
            buffers = [guarded(shape, dtype) for _ in range(3)]
            before = [buffer.clone() for buffer, _ in buffers]
            weight, moment, grad = (view for _, view in buffers)
            row = torch.rand(shape[1], generator=generator, device=at.device) + 0.5
            exact = [view.double() for view in (weight, moment, grad)]
            sums = triton_kernels.column_sums_of_squares(grad)
            differs += not torch.equal(sums, triton_kernels.column_sums_of_squares(grad))
            triton_kernels.update(weight, moment, grad, row, 0.9, 0.1, 0.99)
            new_moment = 0.9 * exact[1] + 0.1 * exact[2]
            whole = _whole_step(*(each.to(dtype) for each in exact), row)
            pairs = {
                **whole,
                "sums": (sums, exact[2].square().sum(0)),
                "weights": (weight, 0.99 * exact[0] - row.double() * new_moment),
                "moments": (moment, new_moment),
            }
            for name, (found, right) in pairs.items():
                worst[name] = max(worst[name], relative_error(found, right))
            for (buffer, _), old in zip(buffers, before, strict=True):
                edges = [buffer[:_GUARD], buffer[-_GUARD:]], [old[:_GUARD], old[-_GUARD:]]
                touched += not all(torch.equal(*each) for each in zip(*edges, strict=True))
        name = str(dtype).removeprefix("torch.")
        for what, error in worst.items():
            yield Row(f"{name} {what}, error", error, FP32 if what in _IN_FP32 else allowed)
        yield Row(f"{name}, writes beside a matrix", touched, 0)
        yield Row(f"{name}, sums that differ the second time", differs, 0)
    yield Row("shapes", len(n_rows) * len(n_columns))


_IN_FP32 = ("sums", "sums of clipping", "norm and factor", "second moments of a step")
_OF_KERNELS = (*_IN_FP32, "weights", "moments", "weights of a step", "moments of a step")


def _whole_step(
    weight: Tensor, moment: Tensor, grad: Tensor, moments: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return what clipping and a step by their kernels give, each with its exact value."""
    from coupled_adam import triton_kernels

    exact = [each.double() for each in (weight, moment, grad, moments)]
    square = exact[2].square().sum(0)
    others = torch.full((), 2.0, device=grad.device)
    norm = (square.sum() + 4).sqrt()
    factor = min(1.0, 3.0 / (norm.item() + 1e-6))
    sums, found = triton_kernels.norm_of(grad, 3.0, others, None)
    settings = (0.9, 0.1, 0.99, 0.05, 2.0, 1e-2, 1e-8)
    found_moments = triton_kernels.step(weight, moment, grad, sums, moments, found[0], *settings)
    new_moments = exact[3] + 0.05 * (factor**2 * square / len(grad) - exact[3])
    new_moment = 0.9 * exact[1] + 0.1 * factor * exact[2]
    new_weight = 0.99 * exact[0] - 1e-2 / ((2.0 * new_moments).sqrt() + 1e-8) * new_moment
    return {
        "sums of clipping": (sums, square),
        "norm and factor": (found[:2], torch.stack([norm.new_tensor(factor), norm])),
        "second moments of a step": (found_moments, new_moments),
        "moments of a step": (moment, new_moment),
        "weights of a step": (weight, new_weight),
    }


def loss(at: At) -> Rows:
    """Loss and gradients against float64 on the CPU, in both precisions."""
    variants: dict[str, tuple[dict[str, Any], float, float | None]] = {
        "gpt2": ({}, 0.0, None),
        "z-loss": ({}, 1e-2, None),
        "soft cap": ({}, 0.0, 5.0),
        "untied": ({"tied": False}, 0.0, None),
        "qk-norm": ({"architecture": "stablelm", "qk_norm": "shared"}, 0.0, None),
    }
    for name, (settings, z_loss, soft_cap) in variants.items():
        cell = at.cell(SMALL | settings, RECIPE | {"seq_len": 512}, {})
        # More tokens than a chunk of the loss.
        n_sequences, seq_len = (
            at.size(10, 3),
            cell.training.seq_len,
        )
        tokens = torch.from_numpy(
            zipf_tokens(n_sequences * (seq_len + 1), cell.vocab_size, 0)
        ).view(n_sequences, -1)
        inputs, targets = tokens[:, :-1], tokens[:, 1:].masked_fill(tokens[:, 1:] == 3, -100)
        arguments: dict[str, Any] = {"reduction": "objective", "z_loss": z_loss}
        model = at.model(cell, 0.05, soft_cap)
        chunk_losses: dict[str, ChunkLoss | None] = {"": None}
        if at.on_gpu:
            from coupled_adam_bench.models.loss_kernel import by_kernel

            chunk_losses[", our kernel"] = by_kernel
        exact = double(replace(at, device=torch.device("cpu")).model(cell, 0.05, soft_cap))
        wanted, _ = exact(inputs, targets, **arguments)
        wanted.backward()
        for precision, way in itertools.product(LIMITS, chunk_losses):
            allowed = LIMITS[precision]
            model.zero_grad()
            model.chunk_loss = chunk_losses[way]
            with torch.autocast(at.device.type, torch.bfloat16, enabled=precision == "bf16"):
                found, _ = model(inputs.to(at.device), targets.to(at.device), **arguments)
            found.backward()
            what = f"{name} {precision}{way}"
            yield Row(f"{what}, loss", abs(found.item() / wanted.item() - 1), allowed)
            both = list(zip(model.parameters(), exact.parameters(), strict=True))
            grads = [
                torch.cat([pair[side].grad.double().flatten().cpu() for pair in both])
                for side in (0, 1)
            ]
            yield Row(f"{what}, gradients", relative_error(*grads), allowed)


def double(model: LanguageModel) -> LanguageModel:
    """Return a model whose weights are in float64."""
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(weight.detach().double()))
    return model


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "adamw": ("adamw", {}),
    "coupled_adam": ("coupled_adam", {}),
    "coupled_adam, mu-centering": ({"name": "coupled_adam", "mu_centering": True}, {}),
    "ember": ("ember", {}),
    "sgd": ({"name": "sgd", "lr_factor": 100, "momentum": 0.9}, {}),
    "coupled_adam, muon": ("coupled_adam", {"core_optimizer": "muon"}),
}


def optimizers(at: At) -> Rows:
    """Steps of six optimizers, compiled and not, against the CPU: how far each loss is off, and
    over what is allowed at its step."""
    for precision, name, cell in _optimizer_cells(at):
        wanted = reference_losses(at, precision, name)
        allowed = allowed_differences(at, precision, name)
        for compiled in (False, True):
            found = _losses(at, cell, len(wanted), compile=compiled)
            what = f"{name} {precision}, {'compiled' if compiled else 'eager'}"
            differences = relative_differences(found, wanted)
            yield Row(what, max(differences))
            yield Row(f"{what}, relative to what is allowed", furthest(differences, allowed), 1)


def relative_differences(found: Sequence[float], wanted: Sequence[float]) -> list[float]:
    """Return step by step by how much a loss is off, relative to the one that is wanted."""
    return [abs(ours - right) / right for ours, right in zip(found, wanted, strict=True)]


def furthest(differences: Sequence[float], allowed: Sequence[float]) -> float:
    """Return the largest share that a step takes of what is allowed at it; inf where a loss is not
    finite."""
    shares = [off / limit for off, limit in zip(differences, allowed, strict=True)]
    return max(share if math.isfinite(share) else math.inf for share in shares)


def allowed_differences(at: At, precision: str, name: str) -> list[float]:
    """Return step by step by how much a loss may be off, relative to the CPU's.

    Rounding alone is amplified from step to step, by Coupled Adam several hundred times as much as
    by AdamW. So what is allowed grows with what weights that are moved by a rounding have done to
    the losses so far. In the first steps, where a wrong kernel already shows, it is small.
    """
    # Muon orthogonalizes in bf16, whatever the precision.
    is_bf16 = OPTIMIZERS[name][1].get("core_optimizer", "adamw") != "adamw"
    limit = LIMITS["bf16" if is_bf16 else precision]
    return [limit + SENSITIVITIES * far for far in sensitivity(at, precision, name)]


def sensitivity(at: At, precision: str, name: str) -> list[float]:
    """Return step by step how far moved weights have moved a loss up to there, relative to it: the
    largest of several draws in float32 on the CPU, of the file or else computed for it."""
    wanted = reference_losses(at, "fp32", name)
    cell = _cpu_cell(at, "fp32", name)
    far = [0.0] * len(wanted)
    for draw in range(N_DRAWS):
        key = f"{cell.id} moved by {MOVED[precision]:g}, draw {draw}"
        train = partial(_losses_of_moved, at, cell, len(wanted), MOVED[precision], draw)
        moved = _kept(at, key, train)
        far = list(map(max, far, relative_differences(moved, wanted)))
    return list(itertools.accumulate(far, max))


def _losses_of_moved(at: At, cell: Cell, steps: int, moved: float, draw: int) -> list[float]:
    return _losses(_on_cpu(at), cell, steps, moved=moved, draw=draw)


def _on_cpu(at: At) -> At:
    return replace(at, device=torch.device("cpu"))


def _optimizer_cells(at: At, **execution: Any) -> Iterator[tuple[str, str, Cell]]:
    for precision, (name, (optimizer, core)) in itertools.product(LIMITS, OPTIMIZERS.items()):
        recipe = RECIPE | core | {"precision": precision}
        yield precision, name, at.cell(SMALL, recipe, execution, optimizers=[optimizer])


def _cpu_cell(at: At, precision: str, name: str) -> Cell:
    cells = {each[:2]: each[2] for each in _optimizer_cells(_on_cpu(at), gpus=0)}
    return cells[precision, name]


def reference_losses(at: At, precision: str, name: str) -> list[float]:
    """Return the losses of an optimizer's steps on the CPU, of the file or else computed for it."""
    cell = _cpu_cell(at, precision, name)
    return _kept(at, cell.id, lambda: _losses(_on_cpu(at), cell, at.size(*N_STEPS)))


def _kept(at: At, key: str, compute: Callable[[], list[float]]) -> list[float]:
    """Return losses of the file ``at.references``, or compute them and keep them there."""
    path = at.references
    known: dict[str, list[float]] = {}
    if path is not None and path.exists():
        known = json.loads(path.read_text(encoding="utf-8"))
    if key not in known:
        known[key] = compute()
        if path is not None:
            path.write_text(json.dumps(known) + "\n", encoding="utf-8")
    return known[key]


def make_references(at: At) -> None:
    """Compute all that is compared with a CPU, which is kept in the file ``at.references``.

    Losses in bf16 are left to a processor that has it, such as that of the machine with the GPU: on
    another they take hours.
    """
    for precision, name in itertools.product(LIMITS, OPTIMIZERS):
        print(f"{name} {precision} ...", flush=True)
        sensitivity(at, precision, name)
        if precision == "bf16" and lacks_bf16():
            print("  losses in bf16 are left to the machine with the GPU: this one has no bf16")
        else:
            reference_losses(at, precision, name)


def _losses(
    at: At, cell: Cell, steps: int, moved: float = 0.0, draw: int = 0, **execution: Any
) -> list[float]:
    """Return the losses of steps whose initial weights are ``moved``, relative to each."""
    threads = at.size(min(16, os.cpu_count() or 1), 1)
    with at.trainer(cell, train_threads=threads, **execution) as trainer:
        # The trainer asks for TF32, which a CPU does not have.
        torch.set_float32_matmul_precision("highest")
        if moved:
            generator = torch.Generator().manual_seed(draw)
            for weight in trainer.model.parameters():
                noise = torch.randn(weight.shape, generator=generator)
                weight.data.mul_(1 + moved * noise)
        return [trainer.train_step(step)[0].item() for step in range(steps)]


def stopping(at: At) -> Rows:
    """SIGTERM, SIGKILL and the resumed runs after them, against a run that nothing stopped."""
    steps, execution = (
        at.size(1500, 300),
        {"log_every": 10, "checkpoint_every": 30, "deterministic": True},
    )
    whole, stopped = (
        Command(at, name, SMALL, RECIPE, steps, execution) for name in ("whole", "stopped")
    )
    yield Row("undisturbed run, status", whole.start().wait(), 0, 0)
    process = stopped.start()
    running = reaches(process, lambda: stopped.lines() >= 5)
    begun = time.perf_counter()
    process.send_signal(signal.SIGTERM)
    yield Row("status after SIGTERM", process.wait(), 75, 75)
    yield Row(
        "seconds from SIGTERM to the end",
        time.perf_counter() - begun if running else float("nan"),
        10,
    )
    process, lines, saved = stopped.start(), stopped.lines(), stopped.saved()
    running = reaches(process, lambda: stopped.lines() > lines + 2 and stopped.saved() != saved)
    process.kill()
    yield Row("SIGKILL met a running process", running and process.wait() == -signal.SIGKILL, 1, 1)
    yield Row("run resumed after SIGKILL, status", stopped.start().wait(), 0, 0)
    yield Row(
        "lines of the history", len(stopped.history()), len(whole.history()), len(whole.history())
    )
    pairs = zip(sum(stopped.history(), ()), sum(whole.history(), ()), strict=True)
    yield Row(
        "largest difference of losses and norms", max(abs(one - other) for one, other in pairs), 0
    )


def deterministic(at: At) -> Rows:
    """The same training twice under ``execution.deterministic``, eager and compiled: weights that
    differ."""
    cell = at.cell(SMALL, RECIPE | {"precision": "bf16"}, {"deterministic": True})
    for compiled in (False, True):
        weights = []
        for _ in range(2):
            with at.trainer(cell, compile=compiled) as trainer:
                for step in range(at.size(20, 2)):
                    trainer.train_step(step)
                weights.append(
                    [parameter.detach().clone() for parameter in trainer.model.parameters()]
                )
        differ = sum(not torch.equal(one, other) for one, other in zip(*weights, strict=True))
        yield Row(f"{'compiled' if compiled else 'eager'}, parameters that differ", differ, 0)


def scoring(at: At) -> Rows:
    """Log-likelihoods of 500 requests against transformers, in float32 and in bfloat16."""
    from transformers import AutoModelForCausalLM

    cell = at.cell("gpt2-125m", RECIPE | {"seq_len": 1024}, {})
    model = at.model(cell, 0.05).eval()
    write_tokens(at.folder / "data", cell)
    save_model(model, at.folder / "model", at.folder / "data" / "tokenizer", 0)
    theirs = (
        AutoModelForCausalLM.from_pretrained(at.folder / "model", dtype=torch.float32)
        .to(at.device)
        .eval()
    )
    drawn = requests(at.size(125, 3), at.size(60, 8), at.size(20, 3), cell.vocab_size)
    found = [
        likeliest(theirs, request, at.device) if request.n_continuation == 1 else request
        for request in drawn
    ]
    wanted = [score(theirs, request, at.device) for request in found]
    for precision, limit in LIMITS.items():
        ours = Scorer(model, cell.training.seq_len, 16 * 1024, precision == "bf16").score(found)
        pairs = list(zip(ours, wanted, strict=True))
        far = max(abs(log_p - right) / abs(right) for (log_p, _), (right, _, _) in pairs)
        yield Row(f"{precision}, largest relative difference of a log-likelihood", far, limit)
        least = {"fp32": 1e-4, "bf16": 1e-1}[precision]
        clear = [(greedy, right) for (_, greedy), (_, right, gap) in pairs if gap > least]
        yield Row(
            f"{precision}, other likeliest tokens",
            sum(greedy != right for greedy, right in clear),
            0,
        )
    yield Row("requests", len(found))
    yield Row(
        "requests whose tokens are all the likeliest",
        sum(right for _, right, _ in wanted),
        None,
        at.size(100, 1),
    )
    yield Row("products in TF32", torch.get_float32_matmul_precision() != "highest", 0)


def requests(n_questions: int, longest: int, answer: int, vocab_size: int) -> list[TokenRequest]:
    """Return questions with four answers each, one of a single token."""
    generator = np.random.default_rng(0)
    found = []
    for index in range(n_questions):
        question = zipf_tokens(int(generator.integers(2, longest)), vocab_size, index)
        for number in range(4):
            size = int(generator.integers(1, answer)) if number else 1
            tokens = np.concatenate(
                [question, zipf_tokens(size, vocab_size, 10 * index + number + 1000)]
            )
            found.append(TokenRequest(tokens.astype(np.int32), size))
    return found


@torch.inference_mode()
def likeliest(model: Any, request: TokenRequest, device: torch.device) -> TokenRequest:
    """Return a request of one token with the token that transformers' model finds the likeliest."""
    logits = model(torch.from_numpy(request.tokens[None, :-1].astype(np.int64)).to(device)).logits
    return request._replace(
        tokens=np.append(request.tokens[:-1], np.int32(logits[0, -1].argmax().item()))
    )


@torch.inference_mode()
def score(model: Any, request: TokenRequest, device: torch.device) -> tuple[float, bool, float]:
    """Return log-likelihood, whether all tokens are the likeliest, and by how much the logits at
    the least say so."""
    tokens = torch.from_numpy(request.tokens.astype(np.int64)).to(device)
    logits = model(tokens[None, :-1]).logits[0, -request.n_continuation :].float()
    targets = tokens[-request.n_continuation :]
    log_p = torch.log_softmax(logits.double(), -1).gather(1, targets[:, None]).sum().item()
    best, second = logits.topk(2).values.unbind(1)
    likeliest = torch.equal(logits.argmax(-1), targets)
    own = logits.gather(1, targets[:, None])[:, 0]
    return log_p, likeliest, torch.where(own == best, best - second, best - own).min().item()
