"""The training loop: steps, history, checkpoints and the record of the run."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from coupled_adam_bench.data.bins import verified_tree
from coupled_adam_bench.data.check import TOKENIZER
from coupled_adam_bench.machine.progress import Progress, say
from coupled_adam_bench.models.export import save_model
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.store.runs import write_run
from coupled_adam_bench.training.distributed import StopVote, whole
from coupled_adam_bench.training.live import VALIDATION_LOSS, LiveMeasurements
from coupled_adam_bench.training.monitor import (
    EnergyMeter,
    environment,
    peak_flops,
    peak_memory_bytes,
)
from coupled_adam_bench.training.trainer import Trainer

_SHOWN = ("loss", VALIDATION_LOSS, "mean_norm_ratio", "mfu")
"""The numbers that the line of progress shows, each from the last line of the history with it."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended, after which step (from 1), and why it diverged."""

    status: Literal["completed", "diverged", "interrupted"]
    step: int
    reason: str | None = None


@dataclass(frozen=True)
class Due:
    """What is due after a step: a line of the history, a checkpoint, the end of the run on request;
    and whether the step is the final one."""

    logs: bool
    saves: bool
    stops: bool
    is_final: bool


class Run:
    """The run of a trainer to its end, and the files that record it.

    A request in ``stop`` ends the run after a checkpoint. A ``trunk`` keeps its last checkpoint and
    logs no line for that step, so that cells continue from there as if they had done all the steps.
    """

    def __init__(self, trainer: Trainer, stop: Sequence[int], trunk: bool = False) -> None:
        self.stop, self.trunk = stop, trunk
        self.trainer, self.cell, self.execution = trainer, trainer.cell, trainer.execution
        self.group, self.device, self.files = (
            trainer.group,
            trainer.device,
            paths.RunFiles(trainer.run_dir),
        )
        self.live = trainer.group.run_on_all(lambda: LiveMeasurements(trainer))
        self._meter = EnergyMeter(self.device)
        self._unread: list[tuple[Tensor, Tensor]] = []
        """Losses and gradient norms that have not been copied to the host yet."""

    def _read(self) -> tuple[float, int | None]:
        """Synchronize, record the losses since the last call and return the last norm and the first
        bad step."""
        losses = torch.stack([loss.double() for loss, _ in self._unread])
        energy = losses.new_tensor([self._meter.joules()])
        norms = [norm.item() for _, norm in self._unread]
        self._unread.clear()
        *sums, joules = self.group.sum(torch.cat([losses, energy])).tolist()
        values = [loss / self.group.size for loss in sums]
        self.trainer.state.add_energy(joules)
        first = self.trainer.state.step - len(values) + 1
        self.trainer.state.interval_losses += values
        for spike in self.trainer.state.spikes.update(values):
            self._say(
                f"loss spike in step {spike['step']}: {spike['loss']:.4g}, expected"
                f" {spike['expected']:.4g}"
            )
        finite = [
            math.isfinite(value) and math.isfinite(norm)
            for value, norm in zip(values, norms, strict=True)
        ]
        return norms[-1], first + finite.index(False) if False in finite else None

    def _say(self, line: str) -> None:
        if self.group.is_first:
            say(f"{self.cell.id}: {line}")

    def _mfu(self, tokens_per_second: float) -> float | None:
        """Return the model FLOPs utilization: the share of the GPUs' dense bf16 peak; ``None`` if
        it is unknown."""
        peak = peak_flops(self.device)
        flops = self.cell.flops / self.cell.n_tokens
        return flops * tokens_per_second / (peak * self.group.size) if peak else None

    def _log(
        self, grad_norm: float, tokens_per_second: float, measured: Mapping[str, float]
    ) -> dict[str, Any]:
        """Return a line of the history with what was ``measured``, and append it to the file in the
        first process."""
        training, losses = self.cell.training, self.trainer.state.interval_losses
        # The embedding may be in shards, so sums over its rows are taken before they are gathered.
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
            **measured,
        }
        if (mfu := self._mfu(tokens_per_second)) is not None:
            row["mfu"] = mfu
        if self.group.is_first:
            self.trainer.history.append(row)
        losses.clear()
        return row

    def to_end(self) -> Outcome:
        """Train to the last step and return the outcome.

        A run diverges in the first step whose loss or gradient is not finite, or with an update of
        its last step after which a weight is not: no later loss would show that.
        """
        state = self.trainer.state
        self._start_clock()
        bad_step: int | None = None
        vote = StopVote(self.group)
        with Progress(
            self.cell.n_tokens,
            "tokens",
            self.cell.id,
            initial=state.step * self._batch_tokens,
            quiet=not self.group.is_first,
        ) as progress:
            while state.step < self.cell.steps:
                due = self._step(vote)
                # These are the only steps after which the host waits for the device.
                if due.logs or due.saves:
                    bad_step = self._log_and_measure(due)
                # What is not finite any more is no state to continue from.
                if bad_step is not None:
                    break
                if due.saves:
                    self.trainer.save(kept=due.is_final and self.trunk)
                progress.update(self._batch_tokens, **self._shown)
                # The checkpoint of a run that was asked to stop is written by now.
                if due.stops:
                    break
            vote.count()
            self.trainer.checkpoints.wait()
        return self._outcome(bad_step)

    @property
    def _batch_tokens(self) -> int:
        return self.cell.training.batch_sequences * self.cell.training.seq_len

    def _start_clock(self) -> None:
        """Begin to count the time of this start, which adds to that of earlier ones."""
        self._seconds_before, self._started = self.trainer.state.seconds, time.perf_counter()
        self._last_log = self.trainer.state.step, self._started
        self._shown: dict[str, float] = {}

    def _step(self, vote: StopVote) -> Due:
        """Do one step and return what is due after it; nothing here waits for the device."""
        execution, state = self.execution, self.trainer.state
        is_final = state.step + 1 == self.cell.steps
        # The last step of a trunk is one of many for the cells that continue from there.
        last = is_final and not self.trunk
        self.live.before(state.step + 1, last)
        self._unread.append(self.trainer.train_step(state.step))
        stopping = vote(bool(self.stop))
        state.step += 1
        return Due(
            logs=last or self.live.are_due or state.step % execution.log_every == 0,
            saves=is_final or stopping or state.step % execution.checkpoint_every == 0,
            stops=stopping and not is_final,
            is_final=is_final,
        )

    def _log_and_measure(self, due: Due) -> int | None:
        """Read what the device has computed since the last time, log and measure what is due, and
        return the first bad step."""
        state = self.trainer.state
        grad_norm, bad_step = self._read()
        if due.logs:
            # The speed is that of the steps, without the time of the measurements.
            now = time.perf_counter()
            step_before, time_before = self._last_log
            speed = (state.step - step_before) * self._batch_tokens / (now - time_before)
            # Nothing is measured on weights that a bad step has changed.
            measured = self.live.after(state.step) if bad_step is None else {}
            row = self._log(grad_norm, speed, measured)
            self._shown |= {key: row[key] for key in _SHOWN if key in row}
            self._shown["peak_gb"] = row["peak_memory_bytes"] / 1e9
            self._last_log = state.step, time.perf_counter()
        state.seconds = self._seconds_before + time.perf_counter() - self._started
        return bad_step

    def _outcome(self, bad_step: int | None) -> Outcome:
        """Return how the run ended, given its first bad step."""
        step, n_steps = self.trainer.state.step, self.cell.steps
        if bad_step is not None:
            reason = f"loss or gradient not finite in step {bad_step} of {n_steps}"
            return Outcome("diverged", bad_step, reason)
        if step < n_steps:
            return Outcome("interrupted", step)
        if not self.trainer.weights_are_finite():
            return Outcome("diverged", step, f"weights not finite after step {step}, the last")
        return Outcome("completed", step)

    def report(self, outcome: Outcome) -> None:
        """Export the model of a completed run and write ``run.json``, the last file of a run; for a
        trunk, write the branch."""
        if self.trunk:
            if self.group.is_first:
                self.trainer.history.mend()
                branch = paths.branch_file(self.cell.id, self.cell.steps)
                write_sealed(self.files.folder / branch.name, self.record(outcome))
            return
        # All processes take part in gathering the weights, and the first one writes them.
        if outcome.status == "completed":
            weights = {
                name: whole(tensor).cpu()
                for name, tensor in self.trainer.model.state_dict().items()
            }
            if self.group.is_first:
                verified_tree(self.trainer.data_dir, TOKENIZER)
                tokenizer = self.trainer.data_dir / TOKENIZER
                eot_id = self.trainer.meta.eot_id
                save_model(
                    self.trainer.model, self.files.model, tokenizer, eot_id, weights, self.cell
                )
        if self.group.is_first:
            self.trainer.history.mend()
            write_run(self.files.folder, self.record(outcome))

    def record(self, outcome: Outcome) -> dict[str, Any]:
        """Return the record of an ended run as a JSON value: outcome, data, cost and
        environment."""
        seconds = self.trainer.state.seconds
        batch_tokens = self.cell.training.batch_sequences * self.cell.training.seq_len
        # A run that was over when it was started has spent no time, and has no speed.
        speed = None
        mfu = None
        if seconds:
            speed = self.trainer.state.step * batch_tokens / seconds
            mfu = self._mfu(speed)
        return {
            "cell": self.cell.id,
            "status": outcome.status,
            "reason": outcome.reason,
            "step": outcome.step,
            "trunk_steps": self.trainer.state.trunk_steps,
            "data_sha256": {name: split.sha256 for name, split in self.trainer.meta.splits.items()},
            "train": {
                "device": self.device.type,
                "seconds": seconds,
                "tokens_per_second": speed,
                "mfu": mfu,
                "peak_memory_bytes": peak_memory_bytes(self.device),
                "joules": self.trainer.state.joules,
                "loss_spikes": self.trainer.state.spikes.spikes,
                "processes": self.group.size,
                "parallel": self.execution.parallel if self.group.size > 1 else None,
                "micro_batch_sequences": self.trainer.micro_batch_sequences,
                "compile": self.execution.compile,
                "deterministic": self.execution.deterministic,
            },
            "environment": environment(self.device, self.cell),
        }
