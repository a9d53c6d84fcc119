"""A training step, a state dict and an evaluation batch of each combination of a plan, in full size on fake tensors."""

import contextlib
import gc
import os
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed import device_mesh
from torch.distributed.tensor import DTensor

from coupled_adam_bench.data.bins import SPLITS, UNIGRAM, Bin, Meta, token_dtype, write_meta
from coupled_adam_bench.evaluation.calibration import LogitSums
from coupled_adam_bench.evaluation.test_loss import mean_loss
from coupled_adam_bench.machine.device import LOGITS_CHUNK
from coupled_adam_bench.models import base, cross_entropy
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.tools.rehearsal import fake_gpu
from coupled_adam_bench.tools.rehearsal.combinations import Combination
from coupled_adam_bench.tools.rehearsal.watch import Finding, Watch, found
from coupled_adam_bench.training import distributed
from coupled_adam_bench.training.batches import Batches
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.memory import CPU_PROCESS_BYTES, GPU_SHARE, train_mem_mb
from coupled_adam_bench.training.trainer import Trainer

_MICRO_BATCHES = 2  # of the step: the second adds its gradients to those of the first, and all others do as it does
_DATA_TOKENS = 2**16


@dataclass
class Rehearsed:
    """What was found in a combination; bytes are of one process on its device."""

    combination: Combination
    device: str
    micro_batch_sequences: int | None = None
    peak_bytes: int | None = None
    parts: dict[str, int] = field(default_factory=dict)
    """Weights, gradients, optimizer states and the rest at the moment of the peak."""
    evaluation_bytes: int | None = None
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0


class _OneOfMany(WorkerGroup):
    """One process of a group whose other processes do not exist."""

    def run_on_all(self, function: Any) -> Any:
        return function()

    def run_on_first(self, function: Any) -> Any:
        return function()

    def smallest(self, value: int) -> int:
        return value

    def parallelize(self, model: nn.Module, layers: Sequence[nn.Module], parallel: str) -> nn.Module:
        # DistributedDataParallel reads the memory of tensors in C++, and fake ones have none.
        return super().parallelize(model, layers, parallel) if parallel == "fsdp" else model


class _FirstRows:
    """The batches of a step cut to their first ``sequences``: more micro-batches would only repeat the second."""

    def __init__(self, batches: Batches, sequences: int) -> None:
        self.sequences, self.close, self._get = sequences, batches.close, batches.get

    def get(self, step: int) -> tuple[Tensor, Tensor]:
        inputs_BT, targets_BT = self._get(step)
        return inputs_BT[: self.sequences], targets_BT[: self.sequences]


class _Trainer(Trainer):
    """The trainer, with so much ``room`` for a micro-batch, and short steps."""

    def __init__(self, room: float, *arguments: Any) -> None:
        self._bytes = room
        super().__init__(*arguments)

    def _room(self) -> float:
        return self._bytes

    def make_states(self) -> None:
        """Let the optimizers make their states, without a pass."""
        for parameter in self.names:
            parameter.grad = torch.zeros_like(parameter)
        self.optimizers.step()
        self.optimizers.zero_grad()

    def step_short(self) -> None:
        """Do the second step, of at most ``_MICRO_BATCHES``."""
        batches = self.batches
        self.batches = _FirstRows(batches, _MICRO_BATCHES * self.micro_batch_sequences)  # type: ignore[assignment]
        try:
            self.train_step(1)
        finally:
            self.batches = batches


@contextlib.contextmanager
def _collected_among_new_objects() -> Iterator[None]:
    """Let each look for garbage pass over the objects that are there now: after imports, these are a million."""
    frozen_before = gc.get_freeze_count() > 0
    gc.freeze()
    try:
        yield
    finally:
        if not frozen_before:
            gc.unfreeze()


def rehearse(combination: Combination, gpu_bytes: float) -> Rehearsed:
    """Do a training step, one state dict and one evaluation batch of a combination on fake tensors."""
    started = time.perf_counter()
    execution = combination.execution
    on_gpu = execution.gpus > 0 and fake_gpu.is_possible()
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    result = Rehearsed(combination, device.type)
    watch = Watch(device)
    cpu_bytes = 1e6 * train_mem_mb(combination.cell, execution) / execution.processes - CPU_PROCESS_BYTES
    room = GPU_SHARE * gpu_bytes if execution.gpus else cpu_bytes
    with (
        _collected_among_new_objects(),  # what passes leave is measured, so it is looked for many times
        tempfile.TemporaryDirectory(prefix="coupled-adam-bench-") as folder,
        _settings_of_torch_kept(),
        fake_gpu.pretended_gpu() if on_gpu else _computed_as_on_gpus(execution.gpus > 0),
        _group(device, execution.processes) as group,
    ):
        _write_data(Path(folder), combination.cell)
        try:
            with FakeTensorMode(allow_non_fake_inputs=True), watch:
                _train(Path(folder), group, watch, room, result)
                result.evaluation_bytes = _evaluation_bytes(combination.cell, device, watch)
        except Exception as error:
            # whatever the code under rehearsal raises is a finding
            result.findings.append(found(error))
    result.seconds = time.perf_counter() - started
    return result


def _train(folder: Path, group: WorkerGroup, watch: Watch, room: float, result: Rehearsed) -> None:
    cell = result.combination.cell
    execution = cell.study.execution.model_copy(update={"compile": False, "train_threads": 1})
    trainer = _Trainer(room, cell, execution, folder, folder / "run", group)
    try:
        result.micro_batch_sequences = trainer.micro_batch_sequences
        watch.gradients = lambda: _bytes(p.grad for p in trainer.names if p.grad is not None)
        trainer.make_states()
        watch.reset()
        trainer.step_short()
        gradients = watch.gradients_at_peak
        result.peak_bytes = watch.peak
        if result.combination.uses_ddp:  # its buckets hold all gradients from the start
            gradients = _bytes(trainer.names)
            result.peak_bytes += gradients - watch.gradients_at_peak
        states = [value for value in _state_values(trainer) if value.device.type == trainer.device.type]
        known = {"weights": _bytes(trainer.names), "gradients": gradients, "states": _bytes(states)}
        result.parts = known | {"rest": result.peak_bytes - sum(known.values())}
        trainer.tensors()
    finally:
        trainer.close()
        watch.gradients = lambda: 0


def _evaluation_bytes(cell: Cell, device: torch.device, watch: Watch) -> int:
    training, sequences = cell.training, cell.study.execution.evaluation_batch_sequences
    gc.collect()  # frees the trainer
    with device:
        counts = np.zeros(cell.vocab_size, dtype=np.int64)
        model = build_model(cell.model, cell.vocab_size, training.seq_len, cell.optimizer.soft_cap, counts).eval()
    tokens = np.zeros((sequences, training.seq_len), dtype=np.int64)
    watch.reset()
    observe_logits = LogitSums().add
    mean_loss(model, [(tokens, tokens)], str(device), training.precision == "bf16", observe_logits=observe_logits)
    return watch.peak


def _state_values(trainer: Trainer) -> Iterator[Tensor]:
    for optimizer in trainer.optimizers.by_name().values():
        for state in optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Return the size of tensors, of sharded ones that of this process's shards."""
    shards = (tensor._local_tensor if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return sum(shard.numel() * shard.element_size() for shard in shards)


def _write_data(folder: Path, cell: Cell) -> None:
    """Write token bins in which all tokens are 0: fake tensors have no values."""
    dtype = token_dtype(cell.vocab_size)
    n_tokens = max(_DATA_TOKENS, 2 * cell.training.seq_len)
    contents = np.zeros(n_tokens, dtype=dtype).tobytes()
    bins = {split: Bin(f"{split}.bin", n_tokens, 1, sha256(contents).hexdigest()) for split in SPLITS}
    for each in bins.values():
        (folder / each.file).write_bytes(contents)
    np.save(folder / UNIGRAM, np.zeros(cell.vocab_size, dtype=np.int64))
    write_meta(
        folder, Meta(cell.data_id, cell.vocab_size, cell.vocab_size, 0, dtype.str, "word", bins, {}), [folder / UNIGRAM]
    )


@contextlib.contextmanager
def _settings_of_torch_kept() -> Iterator[None]:
    """Undo what a trainer sets for its whole process."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    deterministic, workspace = torch.are_deterministic_algorithms_enabled(), os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic)
        if workspace is None:
            os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@contextlib.contextmanager
def _computed_as_on_gpus(on_gpus: bool) -> Iterator[None]:
    """Let a fake CPU that stands for a GPU compute loss and attention as a GPU does: the same memory."""
    chunks, softmax = LOGITS_CHUNK, cross_entropy._SOFTMAX
    name = "cuda" if on_gpus else "cpu"
    with fake_gpu.replaced(
        (cross_entropy, "LOGITS_CHUNK", {"cpu": chunks[name]}),
        (cross_entropy, "_SOFTMAX", {"cpu": softmax[name]}),
        (base, "IN_FLOAT32", () if on_gpus else base.IN_FLOAT32),
    ):
        yield


@contextlib.contextmanager
def _group(device: torch.device, size: int) -> Iterator[WorkerGroup]:
    """Yield the first process of a group of ``size``, whose collectives return at once."""
    if size == 1:
        yield WorkerGroup(device)
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    mesh = device_mesh.init_device_mesh

    def real_mesh(*arguments: Any, **options: Any) -> Any:  # a mesh computes with the values of its ranks
        with unset_fake_temporarily():
            return mesh(*arguments, **options)

    try:
        with fake_gpu.replaced((distributed, "init_device_mesh", real_mesh)):
            yield _OneOfMany(device, 0, size)
    finally:
        dist.destroy_process_group()
