"""One cell in training: model, optimizers and batches; steps forward, and to disk and back.

Shapes: B sequences of a micro-batch, T = seq_len tokens.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from coupled_adam_bench.cells import Cell, stable_part
from coupled_adam_bench.config import Execution
from coupled_adam_bench.data.bins import Meta, load_meta, open_tokens
from coupled_adam_bench.files import read_json
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.optim.coupled_shards import local
from coupled_adam_bench.optim.registry import Optimizers, build_optimizers
from coupled_adam_bench.optim.schedule import learning_rate_factor
from coupled_adam_bench.training import history, micro_batch
from coupled_adam_bench.training.batches import Batches
from coupled_adam_bench.training.checkpoint import STATE, Checkpoints, Described, load, step_of
from coupled_adam_bench.training.distributed import Group, accumulating, whole
from coupled_adam_bench.training.monitor import SpikeMonitor
from coupled_adam_bench.training.optimizer_state import allocate_state, export_state, import_state


@dataclass
class State:
    """What a checkpoint holds besides weights and optimizers."""

    step: int = 0
    interval_losses: list[float] = field(default_factory=list)
    """Of the steps since the last line of the history."""
    seconds: float = 0.0
    """Time in the loop, all sessions of a resumed run together."""
    spikes: SpikeMonitor = field(default_factory=SpikeMonitor)
    trunk_steps: int = 0
    """Of ``step``, those that another run did: see :class:`~coupled_adam_bench.cells.Trunk`."""


def _set_up(device: torch.device, execution: Execution) -> None:
    """Set threads, precision and determinism of this process."""
    if device.type == "cpu":
        torch.set_num_threads(execution.train_threads)
    else:
        torch.set_float32_matmul_precision("high")  # TF32 [C]
    if execution.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(execution.deterministic)


class Trainer:
    """One cell in training, in this process of a group."""

    def __init__(self, cell: Cell, execution: Execution, data_dir: Path, run_dir: Path, group: Group) -> None:
        self.cell, self.execution, self.run_dir, self.data_dir = cell, execution, run_dir, data_dir
        self.group, self.device = group, group.device
        _set_up(self.device, execution)
        self.meta: Meta = group.together(lambda: load_meta(data_dir))
        training = cell.training
        self.batches = group.together(
            lambda: Batches(open_tokens(data_dir, "train", verify=group.is_first), training, cell.seed, group)
        )
        self.model = build_model(cell.model, cell.vocab_size, training.seq_len)
        self.model.init_weights(cell.seed, training.init_std)
        self.model.to(self.device)
        if execution.compile:
            torch.compiler.reset()  # a process keeps only so many kernels of one function; those of other cells go
            self.model.compile_layers()
        self.module = group.parallelize(self.model, list(self.model.blocks), execution.parallel)
        self.optimizers: Optimizers = build_optimizers(
            self.model, self.model.embedding_parameters(), cell.optimizer, training, cell.model.learning_rate
        )
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in self.model.named_parameters()}
        self.state = State()
        self.checkpoints = self._checkpoints(run_dir, cell.id)
        self.micro_batch_sequences = self._micro_batch()

    def _checkpoints(self, run_dir: Path, cell_id: str) -> Checkpoints:
        identity = {"cell": cell_id, "train_sha256": self.meta.splits["train"].sha256}
        return Checkpoints(run_dir / "checkpoints", self.group, identity)

    def _micro_batch(self) -> int:
        sequences = self.cell.training.batch_sequences // self.group.size
        asked = self.execution.micro_batch_sequences
        if asked != "auto":
            return min(asked or sequences, sequences)
        n_local_params = sum(local(parameter).numel() for parameter in self.names)
        found = micro_batch.find(self._try, sequences, n_local_params, self.execution, self.group)
        self.optimizers.zero_grad()
        return found

    def _try(self, sequences: int) -> None:
        inputs_BT, targets_BT = self.batches.get(0)
        rows = torch.arange(sequences, device=self.device) % len(inputs_BT)
        with accumulating(self.module, last=True):
            self._loss(inputs_BT[rows], targets_BT[rows], targets_BT.numel()).backward()  # type: ignore[no-untyped-call]

    def _loss(self, inputs_BT: Tensor, targets_BT: Tensor, n_tokens: int) -> Tensor:
        """Return the sum of the losses of a micro-batch over ``n_tokens``."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.cell.training.precision == "bf16"):
            return self.module(inputs_BT, targets_BT, reduction="sum") / n_tokens  # type: ignore[no-any-return]

    def train_step(self, step: int) -> tuple[Tensor, Tensor]:
        """Do step ``step`` (from 0) and return this process's mean loss and the gradient's norm before clipping.

        The global batch's loss is the mean over the processes; the gradient is the global one's everywhere.
        """
        training = self.cell.training
        inputs_BT, targets_BT = self.batches.get(step)
        self.optimizers.set_lr(learning_rate_factor(step, self.cell.steps, training))
        loss = torch.zeros((), device=self.device)
        micro = self.micro_batch_sequences
        for start in range(0, len(inputs_BT), micro):
            part = slice(start, start + micro)
            with accumulating(self.module, last=start + micro >= len(inputs_BT)):
                micro_loss = self._loss(inputs_BT[part], targets_BT[part], targets_BT.numel())
                micro_loss.backward()  # type: ignore[no-untyped-call]
            loss += micro_loss.detach()
        grad_norm = self.optimizers.clip_grad_norm_(self.model.parameters(), training.grad_clip)
        self.optimizers.step()
        self.optimizers.zero_grad()
        return loss, whole(grad_norm)

    def save(self, kept: bool = False) -> None:
        """Begin to write a checkpoint of the present step, which stays for good if it is to be ``kept``."""
        tensors = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
        rest = {}
        for name, optimizer in self.optimizers.by_name().items():
            moments, rest[name] = export_state(optimizer, self.names, name)
            tensors |= moments
        state = {
            "interval_losses": list(self.state.interval_losses),  # written later, while training goes on
            "seconds": self.state.seconds,
            "spikes": self.state.spikes.to_json(),
            "trunk_steps": self.state.trunk_steps,
            "optimizers": rest,
        }
        self.checkpoints.save(self.state.step, tensors, state, kept)

    def resume(self, trunks: Path | None = None) -> None:
        """Go to the newest whole checkpoint, if there is one, and rewind the history to it.

        It may be one of the cell's trunk in the folder ``trunks``, whose history is then the beginning of the cell's.
        """
        self.checkpoints.clean()
        newest, source = self.checkpoints.newest(), self.run_dir
        part = stable_part(self.cell)
        if trunks is not None and part is not None and (newest is None or step_of(newest) < part.steps):
            branch = self._checkpoints(trunks / part.id, part.id).newest(part.steps)
            if branch is not None and (newest is None or step_of(newest) < step_of(branch)):
                newest, source = branch, trunks / part.id
        if newest is not None:
            self.load(newest)
        if source != self.run_dir:
            self.state.trunk_steps = self.state.step
        if self.group.is_first:
            history.rewind(self.run_dir / "history.jsonl", self.state.step, source / "history.jsonl")

    def load(self, path: Path) -> None:
        """Go to the checkpoint ``path``."""
        optimizers = self.optimizers.by_name()

        def allocate(described: Described) -> dict[str, Tensor]:
            tensors = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
            for name, optimizer in optimizers.items():
                tensors |= allocate_state(optimizer, self.names, name, described)
            return tensors

        tensors = load(path, self.group, allocate)  # the model's in place
        state = read_json(path / STATE)
        for name, optimizer in optimizers.items():
            import_state(optimizer, self.names, name, tensors, state["optimizers"][name])
        self.state = State(state["step"], state["interval_losses"], state["seconds"])
        self.state.trunk_steps = state["trunk_steps"]
        self.state.spikes.restore(state["spikes"])
