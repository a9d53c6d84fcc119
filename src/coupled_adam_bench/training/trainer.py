"""One cell in training: its model, optimizers and batches, its steps, and its checkpoints.

Shapes: B sequences of a micro-batch, T = seq_len tokens.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coupled_adam.shards import local
from coupled_adam_bench.data.bins import UNIGRAM, Meta, load_meta, open_tokens, verified_file
from coupled_adam_bench.machine.device import check_threads
from coupled_adam_bench.machine.process import rarely_collected
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.optim.build import Optimizers, build_optimizers
from coupled_adam_bench.store.files import read_json
from coupled_adam_bench.store.paths import HISTORY, RunFiles, trunk_dir
from coupled_adam_bench.store.runs import CHECKPOINT_STATE
from coupled_adam_bench.study.plan.cells import Cell, stable_prefix
from coupled_adam_bench.study.plan.schedule import learning_rate_factor
from coupled_adam_bench.study.settings import Execution
from coupled_adam_bench.training.batches import Batches
from coupled_adam_bench.training.checkpoint import (
    Checkpoints,
    Described,
    History,
    load,
    split_lines,
    step_of,
)
from coupled_adam_bench.training.distributed import (
    WorkerGroup,
    accumulating,
    sharing_casts,
    whole,
)
from coupled_adam_bench.training.memory import (
    CPU_PROCESS_BYTES,
    GPU_SHARE,
    most_sequences,
    pieces,
    train_mem_mb,
)
from coupled_adam_bench.training.monitor import SpikeMonitor
from coupled_adam_bench.training.optimizer_state import allocate_state, export_state, import_state
from coupled_adam_bench.training.room import fitting, is_out_of_memory, remember_too_large


class MicroBatchError(Exception):
    """A micro-batch of several sequences does not fit into memory."""


@dataclass
class State:
    """The part of a checkpoint besides weights and optimizers."""

    step: int = 0
    interval_losses: list[float] = field(default_factory=list)
    """Losses of the steps since the last line of the history."""
    seconds: float = 0.0
    """Time in the training loop, summed over all sessions of a resumed run."""
    joules: float | None = 0.0
    """Energy of all GPUs in the training loop, summed likewise; None if a part of it is not
    known."""
    spikes: SpikeMonitor = field(default_factory=SpikeMonitor)
    trunk_steps: int = 0
    """Number of the steps that the cell's trunk did."""

    def add_energy(self, joules: float) -> None:
        """Add what an interval took, NaN if that is not known."""
        self.joules = None if self.joules is None or math.isnan(joules) else self.joules + joules


def _set_up(device: torch.device, execution: Execution) -> None:
    """Set threads, precision and determinism of this process."""
    if device.type == "cpu":
        check_threads("execution.train_threads", execution.train_threads)
        torch.set_num_threads(execution.train_threads)
    else:
        torch.set_float32_matmul_precision("high")  # TF32 [C]
    if execution.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    with rarely_collected():  # it imports torch's compiler
        torch.use_deterministic_algorithms(execution.deterministic)


def nothing() -> None:
    """Do nothing, where no measurement looks at the gradients."""


class Trainer:
    """One cell in training, in this process of a group."""

    def __init__(
        self, cell: Cell, execution: Execution, data_dir: Path, run_dir: Path, group: WorkerGroup
    ) -> None:
        self.cell, self.execution, self.run_dir, self.data_dir = cell, execution, run_dir, data_dir
        self.group, self.device = group, group.device
        group.run_on_all(lambda: _set_up(self.device, execution))
        self.meta: Meta = group.run_on_all(lambda: load_meta(data_dir))
        training = cell.training
        self.batches = group.run_on_all(
            lambda: Batches(
                open_tokens(data_dir, "train", verify=group.is_first), training, cell.seed, group
            )
        )
        counts = (
            None if cell.model.n_contexts is None else np.load(verified_file(data_dir, UNIGRAM))
        )
        soft_cap = cell.optimizer.head.soft_cap
        with self.device:  # the initial values are drawn on the CPU, whatever the device
            self.model = build_model(
                cell.model, cell.vocab_size, training.seq_len, soft_cap, counts
            )
        self.model.init_weights(
            cell.seed, training.init_std if training.init == "normal" else training.init
        )
        if execution.compile:
            # drop other cells' compiled kernels; dynamo caches only a few per function
            torch.compiler.reset()
            self.model.compile_parts(execution.deterministic)
        self.module = group.parallelize(self.model, list(self.model.blocks), execution.parallel)
        self.optimizers: Optimizers = build_optimizers(
            self.model,
            self.model.embedding_parameters(),
            cell.optimizer,
            training,
            cell.model.learning_rate,
        )
        self.names: dict[Tensor, str] = {
            parameter: name for name, parameter in self.model.named_parameters()
        }
        self.state = State()
        self.history = History(RunFiles(run_dir).history)
        self.checkpoints = self._checkpoints(run_dir, cell.id)
        self.before_clipping: Callable[[], None] = nothing
        """Called in each step when all gradients are there, before they are clipped."""
        self.micro_batch_sequences = fitting(run_dir, self._micro_batch(), self.device)

    def _checkpoints(self, run_dir: Path, cell_id: str) -> Checkpoints:
        identity = {"cell": cell_id, "train_sha256": self.meta.splits["train"].sha256}
        return Checkpoints(RunFiles(run_dir).checkpoints, self.group, identity)

    @property
    def _own_sequences(self) -> int:
        """The sequences of a step that this process takes."""
        return self.cell.training.batch_sequences // self.group.size

    def _micro_batch(self) -> int:
        sequences, setting = self._own_sequences, self.execution.micro_batch_sequences
        if setting != "auto":
            return min(setting or sequences, sequences)
        return pieces(
            sequences, self.group.smallest(most_sequences(self.cell, self.execution, self._room()))
        )

    def _room(self) -> float:
        """Return the bytes that this process may fill: of a GPU, a share of what other processes
        have left free."""
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0] + torch.cuda.memory_reserved(self.device)
            return GPU_SHARE * free
        return (
            1e6 * train_mem_mb(self.cell, self.execution) / self.execution.processes
            - CPU_PROCESS_BYTES
        )

    def _losses(
        self, inputs_BT: Tensor, targets_BT: Tensor, n_tokens: int
    ) -> tuple[Tensor, Tensor]:
        """Return, divided by ``n_tokens``, a micro-batch's sums of what is minimized and of the
        cross-entropy."""
        z_loss = self.cell.optimizer.head.z_loss
        with torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.cell.training.precision == "bf16"
        ):
            objective, cross_entropy = self.module(
                inputs_BT, targets_BT, reduction="objective", z_loss=z_loss
            )
        return objective / n_tokens, cross_entropy / n_tokens

    def train_step(self, step: int) -> tuple[Tensor, Tensor]:
        """Do step ``step`` (from 0) and return this process's mean cross-entropy and the gradient
        norm before clipping.

        The loss of the global batch is the mean over the processes; the gradient is already global
        in every process. Raises :class:`MicroBatchError` if memory does not suffice and smaller
        micro-batches may help, which the run's folder then remembers. The step may be done in
        part.
        """
        try:
            return self._train_step(step)
        except RuntimeError as error:
            if self.micro_batch_sequences == 1 or not is_out_of_memory(error):
                raise
            remember_too_large(self.run_dir, self.micro_batch_sequences, self.device)
            raise MicroBatchError(
                f"no memory for micro-batches of {self.micro_batch_sequences} sequences "
                f"(execution.micro_batch_sequences): {error}"
            ) from error

    def _train_step(self, step: int) -> tuple[Tensor, Tensor]:
        training = self.cell.training
        inputs_BT, targets_BT = self.batches.get(step)
        self.optimizers.set_lr(
            learning_rate_factor(step, self.cell.steps, training, self.cell.model.learning_rate)
        )
        loss = torch.zeros((), device=self.device)
        micro = self.micro_batch_sequences
        with sharing_casts(self.module, self.device):
            for start in range(0, len(inputs_BT), micro):
                rows = slice(start, start + micro)
                with accumulating(self.module, last=start + micro >= len(inputs_BT)):
                    objective, cross_entropy = self._losses(
                        inputs_BT[rows], targets_BT[rows], targets_BT.numel()
                    )
                    objective.backward()  # type: ignore[no-untyped-call]
                loss += cross_entropy.detach()
        self.optimizers.add_mu_loss_gradient()
        self.before_clipping()
        grad_norm = self.optimizers.clip_grad_norm_(self.model.parameters(), training.grad_clip)
        self.optimizers.step()
        self.optimizers.zero_grad()
        return loss, whole(grad_norm)

    def weights_are_finite(self) -> bool:
        """Tell whether all weights are finite, in every process."""
        with torch.no_grad():
            bad = sum((~local(parameter).isfinite()).any().double() for parameter in self.names)
        return self.group.sum(torch.as_tensor(bad, device=self.device)).item() == 0

    def close(self) -> None:
        """End the threads that read ahead and write checkpoints."""
        # What looks at the gradients knows the trainer, whose memory would wait for a collection.
        self.before_clipping = nothing
        self.batches.close()
        self.checkpoints.close()

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a checkpoint holds of model and optimizers: tensors by name, and the rest as
        JSON values."""
        tensors = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
        rest = {}
        for name, optimizer in self.optimizers.by_name().items():
            moments, rest[name] = export_state(optimizer, self.names, name)
            tensors |= moments
        return tensors, rest

    def save(self, kept: bool = False) -> None:
        """Begin to write a checkpoint of the current step; one that is ``kept`` is never
        deleted."""
        tensors, rest = self.tensors()
        state = {
            # A copy, since it is written while training continues.
            "interval_losses": list(self.state.interval_losses),
            "seconds": self.state.seconds,
            "joules": self.state.joules,
            "spikes": self.state.spikes.to_json(),
            "trunk_steps": self.state.trunk_steps,
            "optimizers": rest,
        }
        self.checkpoints.save(self.state.step, tensors, state, self.history.text, kept)

    def resume(self, results: Path | None = None) -> None:
        """Load the newest whole checkpoint, if there is one, and restore the history up to it.

        It may be a checkpoint of the cell's trunk below the folder ``results``; its history then
        begins the cell's.
        """
        self.checkpoints.clean()
        newest, source = self.checkpoints.newest(), self.run_dir
        trunk = stable_prefix(self.cell)
        # A checkpoint of the trunk counts only where it is further than the cell's own.
        if (
            results is not None
            and trunk is not None
            and (newest is None or step_of(newest) < trunk.steps)
        ):
            folder = trunk_dir(trunk.id, results)
            branch = self._checkpoints(folder, trunk.id).newest(trunk.steps)
            if branch is not None and (newest is None or step_of(newest) < step_of(branch)):
                newest, source = branch, folder
        if newest is not None:
            self.load(newest)
        if source != self.run_dir:
            self.state.trunk_steps = self.state.step
        if self.group.is_first:
            self.history.restore(
                []
                if newest is None
                else split_lines((newest / HISTORY).read_text(encoding="utf-8"))
            )

    def load(self, path: Path) -> None:
        """Load the checkpoint ``path``."""
        optimizers = self.optimizers.by_name()

        def allocate(described: Described) -> dict[str, Tensor]:
            tensors = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
            for name, optimizer in optimizers.items():
                tensors |= allocate_state(optimizer, self.names, name, described)
            return tensors

        tensors = load(path, self.group, allocate)  # the weights are loaded into the model in place
        state = read_json(path / CHECKPOINT_STATE)
        for name, optimizer in optimizers.items():
            import_state(optimizer, self.names, name, tensors, state["optimizers"][name])
        self.state = State(
            state["step"], state["interval_losses"], state["seconds"], state["joules"]
        )
        self.state.trunk_steps = state["trunk_steps"]
        self.state.spikes.restore(state["spikes"])
