"""The training loop.

Shapes: B sequences of a micro-batch, T = seq_len tokens.
"""

import contextlib
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coupled_adam_bench.cells import Cell
from coupled_adam_bench.config import Execution
from coupled_adam_bench.data.bins import Meta, load_meta, open_tokens, sample_offsets
from coupled_adam_bench.device import pick_device
from coupled_adam_bench.files import sha256_file, write_json
from coupled_adam_bench.models.export import WEIGHTS, save_model
from coupled_adam_bench.models.gpt2 import GPT2
from coupled_adam_bench.optim.registry import Optimizers, build_optimizers
from coupled_adam_bench.optim.schedule import learning_rate_factor
from coupled_adam_bench.progress import Progress
from coupled_adam_bench.training import environment, history
from coupled_adam_bench.training.checkpoint import cell_lock, load_checkpoint, save_checkpoint

RESUME_ME = 75  # EX_TEMPFAIL of sysexits.h: stopped on request with a checkpoint, start again to go on


@dataclass
class _State:
    """What a checkpoint holds besides weights and optimizers."""

    step: int = 0
    interval_steps: int = 0
    """Steps since the last line of the history, and the sum of their losses."""
    interval_loss: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    seconds: float = 0.0
    """Time in the loop, all sessions of a resumed run together."""


@contextlib.contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """Collect SIGTERMs, the warning that a cluster sends before the time limit, instead of dying of them."""
    received: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    previous = signal.signal(signal.SIGTERM, remember)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, previous)


class Trainer:
    """One cell in training: model, optimizers, batches and the files of its run folder."""

    def __init__(self, cell: Cell, execution: Execution, data_dir: Path, run_dir: Path, device: str = "auto") -> None:
        self.cell, self.execution, self.run_dir, self.data_dir = cell, execution, run_dir, data_dir
        self.device = torch.device(pick_device(device))
        if self.device.type == "cpu":
            torch.set_num_threads(execution.train_threads)
        else:
            torch.set_float32_matmul_precision("high")  # TF32 [C]
        self.meta: Meta = load_meta(data_dir)
        self.tokens = open_tokens(data_dir, "train")
        training = cell.training
        self.model = GPT2(cell.vocab_size, training.seq_len, cell.model.n_layer, cell.model.n_head, cell.model.d_model)
        self.model.init_weights(cell.seed, training.init_std)
        self.model.to(self.device)
        self.optimizers: Optimizers = build_optimizers(
            self.model, self.model.embedding.weight, cell.optimizer, training, cell.model.learning_rate
        )
        self.identity = {"cell": cell.id, "train_sha256": self.meta.splits["train"].sha256}
        self.state = _State(interval_loss=torch.zeros((), dtype=torch.float64, device=self.device))
        self.first_bad_step = torch.tensor(-1, device=self.device)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the global batch of ``step``, a pure function of seed and step (shapes BT)."""
        training = self.cell.training
        starts = sample_offsets(
            len(self.tokens), training.seq_len, training.batch_sequences, seed=self.cell.seed, step=step
        )
        windows = np.stack([self.tokens[start : start + training.seq_len + 1] for start in starts]).astype(np.int64)
        windows_BT = torch.from_numpy(windows).to(self.device)
        return windows_BT[:, :-1], windows_BT[:, 1:]

    def train_step(self, step: int) -> tuple[Tensor, Tensor]:
        """Do step ``step`` (from 0) and return the mean loss and the norm of the gradient before clipping."""
        training = self.cell.training
        inputs_BT, targets_BT = self.batch(step)
        micro = self.execution.micro_batch_sequences or training.batch_sequences
        assert isinstance(micro, int)
        self.optimizers.set_lr(learning_rate_factor(step, self.cell.steps, training))
        loss = torch.zeros((), device=self.device)
        for inputs, targets in zip(torch.split(inputs_BT, micro), torch.split(targets_BT, micro), strict=True):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=training.precision == "bf16"):
                micro_loss = self.model(inputs, targets, reduction="sum") / targets_BT.numel()
            micro_loss.backward()
            loss += micro_loss.detach()
        grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), training.grad_clip)
        self.optimizers.step()
        self.optimizers.zero_grad()
        return loss, grad_norm

    def save(self) -> None:
        """Write a checkpoint of the present step."""
        state = {
            "identity": self.identity,
            "step": self.state.step,
            "interval_steps": self.state.interval_steps,
            "interval_loss": self.state.interval_loss,
            "seconds": self.state.seconds,
            "model": self.model.state_dict(),
            "core": self.optimizers.core.state_dict(),
            "embedding": self.optimizers.embedding.state_dict(),
        }
        save_checkpoint(self.run_dir / "checkpoints", self.state.step, state)

    def resume(self) -> None:
        """Go to the newest whole checkpoint, if there is one, and rewind the history to it."""
        state = load_checkpoint(self.run_dir / "checkpoints", self.device, self.identity)
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.optimizers.core.load_state_dict(state["core"])
            self.optimizers.embedding.load_state_dict(state["embedding"])
            self.state = _State(state["step"], state["interval_steps"], state["interval_loss"], state["seconds"])
        history.rewind(self.run_dir / "history.jsonl", self.state.step)

    def _log(self, grad_norm: Tensor, tokens_per_second: float) -> dict[str, Any]:
        """Append a line to the history and return it."""
        training = self.cell.training
        with torch.no_grad():
            embedding = self.model.embedding.weight
            mean_norm = embedding.mean(0).norm()
            mean_norm_ratio = mean_norm / embedding.norm(dim=1).mean()
        row = {
            "step": self.state.step,
            "tokens": self.state.step * training.batch_sequences * training.seq_len,
            "loss": (self.state.interval_loss / self.state.interval_steps).item(),
            "lr": self.optimizers.core.param_groups[0]["lr"],
            "grad_norm": grad_norm.item(),
            "mean_norm": mean_norm.item(),
            "mean_norm_ratio": mean_norm_ratio.item(),
            "tokens_per_second": tokens_per_second,
            "time": time.time(),
        }
        history.append(self.run_dir / "history.jsonl", row)
        self.state.interval_steps = 0
        self.state.interval_loss.zero_()
        return row

    def run(self) -> tuple[str, int | None]:
        """Train to the last step and return the status ``completed``, ``diverged`` or ``interrupted``.

        With ``diverged`` comes the number of the first step (from 1) whose loss or gradient was not finite.
        """
        cell, execution, state = self.cell, self.execution, self.state
        batch_tokens = cell.training.batch_sequences * cell.training.seq_len
        progress = Progress(cell.n_tokens, "tok", cell.id, initial=state.step * batch_tokens)
        shown: dict[str, float] = {}
        seconds_before, started = state.seconds, time.perf_counter()
        last_log = (state.step, started)
        with _stop_requests() as stop, progress:
            while state.step < cell.steps:
                loss, grad_norm = self.train_step(state.step)
                state.step += 1
                state.interval_steps += 1
                state.interval_loss += loss
                bad = ~(torch.isfinite(loss) & torch.isfinite(grad_norm))
                self.first_bad_step = torch.where((self.first_bad_step < 0) & bad, state.step, self.first_bad_step)
                final = state.step == cell.steps
                logs = final or state.step % execution.log_every == 0
                saves = final or state.step % execution.checkpoint_every == 0 or bool(stop)
                if logs or saves:  # the only places that wait for the device
                    now = time.perf_counter()
                    state.seconds = seconds_before + now - started
                    if logs:
                        speed = (state.step - last_log[0]) * batch_tokens / (now - last_log[1])
                        row = self._log(grad_norm, speed)
                        shown = {"loss": row["loss"], "mean_norm_ratio": row["mean_norm_ratio"]}
                        last_log = (state.step, now)
                    if (bad_step := int(self.first_bad_step)) >= 0:
                        return "diverged", bad_step
                    if saves:
                        self.save()
                progress.update(batch_tokens, **shown)
                if stop and not final:
                    return "interrupted", None
        return "completed", None

    def report(self, status: str, bad_step: int | None) -> None:
        """Export the model of a completed run and write ``run.json``, the last file of a run."""
        model_sha256, reason = None, None
        if status == "completed":
            save_model(self.model, self.run_dir / "model", self.data_dir / "tokenizer", self.meta.eot_id)
            model_sha256 = sha256_file(self.run_dir / "model" / WEIGHTS)
        else:
            reason = f"loss or gradient not finite in step {bad_step} of {self.cell.steps}"
        seconds = self.state.seconds
        batch_tokens = self.cell.training.batch_sequences * self.cell.training.seq_len
        peak = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None
        write_json(
            self.run_dir / "run.json",
            {
                "cell": self.cell.id,
                "status": status,
                "reason": reason,
                "step": self.state.step if bad_step is None else bad_step,
                "model_sha256": model_sha256,
                "data_sha256": {name: split.sha256 for name, split in self.meta.splits.items()},
                "train": {
                    "seconds": seconds,
                    "tokens_per_second": self.state.step * batch_tokens / seconds if seconds else None,
                    "peak_memory_bytes": peak,
                },
                "environment": environment.describe(self.device),
            },
        )


def train(cell: Cell, execution: Execution, data_dir: Path, run_dir: Path, device: str = "auto") -> int:
    """Train a cell, resuming it if it was begun, and return an exit status: 0, or 75 if it was stopped and can resume.

    A diverged cell ends with 0: it is a result. Raises ``ValueError`` for damaged data or a cell that another process
    trains, ``CheckpointError`` when the disk is full.
    """
    with cell_lock(run_dir):
        write_json(run_dir / "cell.json", cell.to_json())
        trainer = Trainer(cell, execution, data_dir, run_dir, device)
        trainer.resume()
        status, bad_step = trainer.run()
        if status == "interrupted":
            return RESUME_ME
        trainer.report(status, bad_step)
    return 0


def train_cells(cells: Sequence[Cell], execution: Execution, results: Path, device: str = "auto") -> int:
    """Train cells one after the other below the folder ``results`` and return the exit status of the worst.

    A cell that crashes is reported and does not keep the others from training; a request to stop does.
    """
    worst = 0
    for cell in cells:
        try:
            status = train(cell, execution, results / "data" / cell.data_id, results / "runs" / cell.id, device)
        except Exception as error:
            if not isinstance(error, (ValueError, OSError)):  # what the user cannot mend
                traceback.print_exc()
            print(f"error: {cell.id}: {error}", file=sys.stderr)
            worst = 2
            continue
        if status == RESUME_ME:
            return RESUME_ME
    return worst
