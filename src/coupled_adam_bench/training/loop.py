"""The training loop: steps, history, checkpoints and the record of the run."""

import contextlib
import math
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from coupled_adam_bench.cells import Cell
from coupled_adam_bench.config import Execution
from coupled_adam_bench.files import sha256_file, write_json
from coupled_adam_bench.models.export import WEIGHTS, save_model
from coupled_adam_bench.progress import Progress
from coupled_adam_bench.training import environment, history
from coupled_adam_bench.training.checkpoint import cell_lock
from coupled_adam_bench.training.distributed import RESUME_ME, Group, StopVote, Watch, open_group, whole
from coupled_adam_bench.training.monitor import peak_flops, peak_memory_bytes
from coupled_adam_bench.training.trainer import Trainer

Job = Callable[[Group], int]


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


class Run:
    """The run of a trainer to its end, and the files that tell of it.

    A ``trunk`` keeps its last checkpoint and logs no line for it, so that cells go on from there as if alone.
    """

    def __init__(self, trainer: Trainer, trunk: bool = False) -> None:
        self.trunk = trunk
        self.trainer, self.cell, self.execution = trainer, trainer.cell, trainer.execution
        self.group, self.device, self.run_dir = trainer.group, trainer.device, trainer.run_dir
        self._unread: list[tuple[Tensor, Tensor]] = []
        """Loss and gradient norm of the steps that the host has not waited for yet."""

    def _read(self) -> tuple[float, int | None]:
        """Wait for the device, take the losses since the last call and return the last norm and the first bad step."""
        losses = torch.stack([loss.double() for loss, _ in self._unread])
        norms = [norm.item() for _, norm in self._unread]
        self._unread.clear()
        values = (self.group.sum(losses) / self.group.size).tolist()
        first = self.trainer.state.step - len(values) + 1
        self.trainer.state.interval_losses += values
        for spike in self.trainer.state.spikes.update(values):
            self._say(f"loss spike in step {spike['step']}: {spike['loss']:.4g}, expected {spike['expected']:.4g}")
        finite = [math.isfinite(value) and math.isfinite(norm) for value, norm in zip(values, norms, strict=True)]
        return norms[-1], first + finite.index(False) if False in finite else None

    def _say(self, line: str) -> None:
        if self.group.is_first:
            print(f"{self.cell.id}: {line}", file=sys.stderr, flush=True)

    def _mfu(self, tokens_per_second: float) -> float | None:
        """Return the share of the GPUs' dense bf16 peak that the model's FLOPs take; ``None`` where it is unknown."""
        peak = peak_flops(self.device)
        flops = self.cell.flops / self.cell.n_tokens
        return flops * tokens_per_second / (peak * self.group.size) if peak else None

    def _log(self, grad_norm: float, tokens_per_second: float) -> dict[str, Any]:
        """Return a line of the history, and append it to the file in the first process."""
        training, losses = self.cell.training, self.trainer.state.interval_losses
        with torch.no_grad():
            embedding = self.trainer.model.embedding.weight
            mean_norm = whole(embedding.sum(0)).div(embedding.shape[0]).norm().item()
            mean_of_norms = whole(embedding.norm(dim=1).sum()).item() / embedding.shape[0]
        tokens = self.trainer.state.step * training.batch_sequences * training.seq_len
        row = {
            "step": self.trainer.state.step,
            "tokens": tokens,
            "loss": math.fsum(losses) / len(losses),
            "lr": self.trainer.optimizers.core.param_groups[0]["lr"],
            "grad_norm": grad_norm,
            "mean_norm": mean_norm,
            "mean_norm_ratio": mean_norm / mean_of_norms,
            "tokens_per_second": tokens_per_second,
            "peak_memory_bytes": peak_memory_bytes(self.device),
            "seconds_left": (self.cell.n_tokens - tokens) / tokens_per_second,
            "time": time.time(),
        }
        if (mfu := self._mfu(tokens_per_second)) is not None:
            row["mfu"] = mfu
        if self.group.is_first:
            history.append(self.run_dir / "history.jsonl", row)
        losses.clear()
        return row

    def to_end(self) -> tuple[str, int | None]:
        """Train to the last step and return the status ``completed``, ``diverged`` or ``interrupted``.

        With ``diverged`` comes the number of the first step (from 1) whose loss or gradient was not finite.
        """
        cell, execution, state = self.cell, self.execution, self.trainer.state
        batch_tokens = cell.training.batch_sequences * cell.training.seq_len
        shown: dict[str, float] = {}
        seconds_before, started = state.seconds, time.perf_counter()
        last_log = (state.step, started)
        bad_step: int | None = None
        vote = StopVote(self.group)
        with (
            _stop_requests() as stop,
            Progress(
                cell.n_tokens, "tok", cell.id, initial=state.step * batch_tokens, quiet=not self.group.is_first
            ) as progress,
            Watch(self.group, execution.stall_seconds, cell.id) as watch,
        ):
            while state.step < cell.steps:
                self._unread.append(self.trainer.train_step(state.step))
                watch.moved()
                stopping = vote(bool(stop))
                state.step += 1
                final = state.step == cell.steps
                logs = (final and not self.trunk) or state.step % execution.log_every == 0
                saves = final or stopping or state.step % execution.checkpoint_every == 0
                if logs or saves:  # the only places that wait for the device
                    grad_norm, bad_step = self._read()
                    now = time.perf_counter()
                    state.seconds = seconds_before + now - started
                    if logs:
                        speed = (state.step - last_log[0]) * batch_tokens / (now - last_log[1])
                        row = self._log(grad_norm, speed)
                        shown = {key: row[key] for key in ("loss", "mean_norm_ratio", "mfu") if key in row}
                        shown["peak_gb"] = row["peak_memory_bytes"] / 1e9
                        last_log = (state.step, now)
                    if bad_step is not None:
                        break
                    if saves:
                        self.trainer.save(kept=final and self.trunk)
                progress.update(batch_tokens, **shown)
                if stopping and not final:
                    break
            vote.count()
            self.trainer.checkpoints.wait()
        if bad_step is not None:
            return "diverged", bad_step
        return ("completed" if state.step == cell.steps else "interrupted"), None

    def report(self, status: str, bad_step: int | None) -> None:
        """Export the model of a completed run and write ``run.json``, the last file of a run."""
        model_sha256 = None
        if status == "completed":
            weights = {name: whole(tensor).cpu() for name, tensor in self.trainer.model.state_dict().items()}
            if self.group.is_first:
                folder = self.run_dir / "model"
                save_model(
                    self.trainer.model, folder, self.trainer.data_dir / "tokenizer", self.trainer.meta.eot_id, weights
                )
                model_sha256 = sha256_file(folder / WEIGHTS)
        if self.group.is_first:
            write_json(self.run_dir / "run.json", self.record(status, bad_step, model_sha256))

    def record(self, status: str, bad_step: int | None, model_sha256: str | None = None) -> dict[str, Any]:
        """Return what is to be known of an ended run as a JSON value: outcome, data, cost and environment."""
        seconds = self.trainer.state.seconds
        batch_tokens = self.cell.training.batch_sequences * self.cell.training.seq_len
        speed = self.trainer.state.step * batch_tokens / seconds if seconds else None
        reason = None if bad_step is None else f"loss or gradient not finite in step {bad_step} of {self.cell.steps}"
        return {
            "cell": self.cell.id,
            "status": status,
            "reason": reason,
            "step": self.trainer.state.step if bad_step is None else bad_step,
            "trunk_steps": self.trainer.state.trunk_steps,
            "model_sha256": model_sha256,
            "data_sha256": {name: split.sha256 for name, split in self.trainer.meta.splits.items()},
            "train": {
                "seconds": seconds,
                "tokens_per_second": speed,
                "mfu": self._mfu(speed) if speed else None,
                "peak_memory_bytes": peak_memory_bytes(self.device),
                "loss_spikes": self.trainer.state.spikes.spikes,
                "processes": self.group.size,
                "parallel": self.execution.parallel if self.group.size > 1 else None,
                "micro_batch_sequences": self.trainer.micro_batch_sequences,
                "compile": self.execution.compile,
                "deterministic": self.execution.deterministic,
            },
            "environment": environment.describe(self.device, self.cell.optimizer),
        }


def train(
    cell: Cell, execution: Execution, data_dir: Path, run_dir: Path, group: Group, trunks: Path | None = None
) -> int:
    """Train a cell, resuming it if it was begun, and return an exit status: 0, or 75 if it was stopped and can resume.

    A diverged cell ends with 0: it is a result. What its trunk in the folder ``trunks`` has done is not done again.
    Raises ``ValueError`` for damaged data or a cell that another process trains, ``CheckpointError`` when the disk is
    full.
    """
    with contextlib.ExitStack() as stack:
        group.from_first(lambda: stack.enter_context(cell_lock(run_dir)))
        if group.is_first:
            write_json(run_dir / "cell.json", cell.to_json())
        trainer = Trainer(cell, execution, data_dir, run_dir, group)
        trainer.resume(trunks)
        run = Run(trainer)
        status, bad_step = run.to_end()
        if status == "interrupted":
            return RESUME_ME
        run.report(status, bad_step)
    return 0


def train_cells(cells: Sequence[Cell], execution: Execution, results: Path, device: str = "auto") -> int:
    """Train cells one after the other below the folder ``results`` and return an exit status: see :func:`in_turn`."""

    def job(cell: Cell) -> Job:
        data_dir, run_dir = results / "data" / cell.data_id, results / "runs" / cell.id
        return lambda group: train(cell, execution, data_dir, run_dir, group, results / "trunks")

    return in_turn({cell.id: job(cell) for cell in cells}, execution, device)


def in_turn(jobs: Mapping[str, Job], execution: Execution, device: str) -> int:
    """Do jobs by name, each given the group of processes, and return the exit status of the worst.

    One that crashes is reported and does not keep the others from their turn, unless other processes work on it too:
    the end of this one ends those. A request to stop ends the loop.
    """
    worst = 0
    with open_group(device, execution.stall_seconds) as group:
        for name, job in jobs.items():
            try:
                status = job(group)
            except Exception as error:
                lost = group.lost(error)
                if not lost and not isinstance(error, (ValueError, OSError)):  # what the user cannot mend
                    traceback.print_exc()
                reason = f"another of the {group.size} processes has ended; its own lines or the launcher's say why"
                print(f"error: {name}: {reason if lost else error}", file=sys.stderr, flush=True)
                if group.size > 1:
                    return 2
                worst = 2
                continue
            if status == RESUME_ME:
                return RESUME_ME
    return worst
