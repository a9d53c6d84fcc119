"""A training step, a state dict and an evaluation batch of each combination of a plan, in full size
on fake tensors.

Fake tensors have a shape and a type, and no values. They lie on the CPU here, which computes loss
and attention as the study's device does. The memory is that of the count that ``plan`` has, with
the states that the optimizers have made.
"""

import contextlib
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed import device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from coupled_adam_bench.data.bins import SPLITS, UNIGRAM, Bin, Meta, token_dtype, write_meta
from coupled_adam_bench.evaluation.calibration import LogitSums
from coupled_adam_bench.evaluation.held_out_loss import mean_loss
from coupled_adam_bench.machine.device import LOGITS_CHUNK
from coupled_adam_bench.models import base, cross_entropy
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import CustomSettings, Execution, SingleOptimizer
from coupled_adam_bench.study.config.optimizers import HeadSettings
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.training import distributed
from coupled_adam_bench.training.batches import Batches
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.memory import GPU_SHARE, Memory, memory_of
from coupled_adam_bench.training.trainer import Trainer

_CPU = torch.device("cpu")
# of the step: the second adds its gradients to those of the first, and all others do as it does
_MICRO_BATCHES = 2
_DATA_TOKENS = 2**16
_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)
_NOT_OURS = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")


@dataclass(frozen=True)
class Combination:
    """Cells that differ in nothing that fake tensors can see: one of them, and the number of
    all."""

    cell: Cell
    n_cells: int

    @property
    def execution(self) -> Execution:
        """How the cell's study trains."""
        return self.cell.study.execution

    @property
    def label(self) -> str:
        """Model, optimizer, processes and precision."""
        execution = self.execution
        processes = (
            f"{execution.processes} x {execution.parallel}"
            if execution.processes > 1
            else "1 process"
        )
        entries = self.cell.optimizer.entries.items()
        kinds = [f"{field} {_label(entry)}".strip() for field, entry in entries]
        return (
            f"{self.cell.model.name}, {', '.join(kinds)}, {processes},"
            f" {self.cell.training.precision}"
        )


def _label(optimizer: SingleOptimizer) -> str:
    return optimizer.key if isinstance(optimizer, CustomSettings) else ", ".join(_kind(optimizer))


def _kind(optimizer: SingleOptimizer) -> list[Any]:
    """Return an optimizer's name, and those of its settings that make other tensors: switches that
    are on, and what is done to the head."""
    given = optimizer.model_dump()
    if isinstance(optimizer, CustomSettings):
        return [given]
    others = [name for name, value in given.items() if value is True or name in HeadSettings.later]
    return [optimizer.name, *others]


def combinations(plan: Plan) -> list[Combination]:
    """Return what a plan's cells combine: model, kind of optimizer, recipe, processes; numbers
    alone make no other."""
    cells: dict[str, list[Cell]] = {}
    for cell in plan.cells.values():
        execution, training = cell.study.execution, cell.training
        # Names, learning rates and numbers of tokens are left out: they make no other tensors.
        key = (
            cell.vocab_size,
            cell.model.model_dump(exclude={"name", "label", "learning_rate"}),
            [_kind(entry) for entry in cell.optimizer.entries.values()],
            [
                training.seq_len,
                training.batch_sequences,
                training.precision,
                training.core_optimizer,
            ],
            [
                execution.gpus,
                execution.processes,
                execution.parallel,
                execution.micro_batch_sequences,
            ],
            execution.evaluation_batch_sequences,
        )
        cells.setdefault(repr(key), []).append(cell)
    return [Combination(alike[0], len(alike)) for alike in cells.values()]


@dataclass
class Rehearsed:
    """What came out of a combination: the memory of one process, and each thing that failed, with
    its place."""

    combination: Combination
    memory: Memory | None = None
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0


class _Numbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers what fake tensors cannot: a number that is read is 1."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its shards come here one by one
        if func in _READS and isinstance(args[0], FakeTensor):
            if args[0].dtype == torch.bool:
                return True
            return 1.0 if args[0].is_floating_point() else 1
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # its fake version would return a copy
        return func(*args, **(kwargs or {}))


class _OneOfMany(WorkerGroup):
    """One process of a group whose other processes do not exist."""

    def run_on_all(self, function: Any) -> Any:
        return function()

    def run_on_first(self, function: Any) -> Any:
        return function()

    def smallest(self, value: int) -> int:
        return value

    def parallelize(
        self, model: nn.Module, layers: Sequence[nn.Module], parallel: str
    ) -> nn.Module:
        # DistributedDataParallel reads the memory of tensors in C++, and fake ones have none.
        return super().parallelize(model, layers, parallel) if parallel == "fsdp" else model


class _FirstRows:
    """The batches of a step cut to their first ``sequences``: more micro-batches would only repeat
    the second."""

    def __init__(self, batches: Batches, sequences: int) -> None:
        self.sequences, self.close, self._get = sequences, batches.close, batches.get

    def get(self, step: int) -> tuple[Tensor, Tensor]:
        inputs_BT, targets_BT = self._get(step)
        return inputs_BT[: self.sequences], targets_BT[: self.sequences]


class _Trainer(Trainer):
    """The trainer, with the ``room`` of a GPU for a micro-batch, and short steps."""

    def __init__(self, room: float | None, *arguments: Any) -> None:
        self._bytes = room
        super().__init__(*arguments)

    def _room(self) -> float:
        return super()._room() if self._bytes is None else self._bytes

    def step_short(self) -> None:
        """Do a step of at most ``_MICRO_BATCHES``."""
        batches = self.batches
        self.batches = _FirstRows(batches, _MICRO_BATCHES * self.micro_batch_sequences)  # type: ignore[assignment]
        try:
            self.train_step(1)
        finally:
            self.batches = batches

    @property
    def state_bytes(self) -> int:
        """The size of the states of the optimizers without counts of steps; of sharded ones that of
        the shards here."""
        total = 0
        for optimizer in self.optimizers.by_name().values():
            for state in optimizer.state.values():
                tensors = [
                    each for each in state.values() if isinstance(each, Tensor) and each.ndim
                ]
                for tensor in tensors:
                    here = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
                    total += here.numel() * here.element_size()
        return total


def rehearse(combination: Combination, gpu_bytes: float) -> Rehearsed:
    """Do a training step, one state dict and one evaluation batch of a combination on fake
    tensors."""
    started = time.perf_counter()
    cell, execution = combination.cell, combination.execution
    result = Rehearsed(combination)
    room = GPU_SHARE * gpu_bytes if execution.gpus else None
    with (
        tempfile.TemporaryDirectory(prefix="coupled-adam-bench-") as folder,
        _computed_as_on("cuda" if execution.gpus else "cpu"),
        _group(execution.processes) as group,
    ):
        _write_data(Path(folder), cell)
        try:
            with FakeTensorMode(allow_non_fake_inputs=True), _Numbers():  # type: ignore[no-untyped-call]
                result.memory = _train(Path(folder), group, room, cell)
                _evaluate(cell)
        except Exception as error:
            # whatever the code under rehearsal raises is a finding
            result.findings.append(_found(error))
    result.seconds = time.perf_counter() - started
    return result


def _train(folder: Path, group: WorkerGroup, room: float | None, cell: Cell) -> Memory:
    execution = cell.study.execution
    here = execution.model_copy(update={"compile": False, "train_threads": 1})
    with contextlib.closing(_Trainer(room, cell, here, folder, folder / "run", group)) as trainer:
        trainer.step_short()
        trainer.tensors()
        return replace(
            memory_of(cell, execution, trainer.micro_batch_sequences), optimizer=trainer.state_bytes
        )


def _evaluate(cell: Cell) -> None:
    training, sequences = cell.training, cell.study.execution.evaluation_batch_sequences
    counts = np.zeros(cell.vocab_size, dtype=np.int64)
    model = build_model(
        cell.model, cell.vocab_size, training.seq_len, cell.optimizer.head.soft_cap, counts
    ).eval()
    tokens = np.zeros((sequences, training.seq_len), dtype=np.int64)
    observe_logits = LogitSums().add
    mean_loss(
        model,
        [(tokens, tokens)],
        "cpu",
        training.precision == "bf16",
        observe_logits=observe_logits,
    )


def _found(error: BaseException) -> str:
    """Return an exception after ``file:line`` of the innermost frame that is neither PyTorch's nor
    the rehearsal's."""
    stack = traceback.extract_tb(error.__traceback__)
    frame = ([frame for frame in stack if not frame.filename.startswith(_NOT_OURS)] or list(stack))[
        -1
    ]
    path = Path(frame.filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{shown}:{frame.lineno}: {type(error).__name__}: {lines[0] if lines else ''}"


def _write_data(folder: Path, cell: Cell) -> None:
    """Write token bins in which all tokens are 0: fake tensors have no values."""
    dtype = token_dtype(cell.vocab_size)
    n_tokens = max(_DATA_TOKENS, 2 * cell.training.seq_len)
    contents = np.zeros(n_tokens, dtype=dtype).tobytes()
    bins = {
        split: Bin(f"{split}.bin", n_tokens, 1, sha256(contents).hexdigest()) for split in SPLITS
    }
    for each in bins.values():
        (folder / each.file).write_bytes(contents)
    np.save(folder / UNIGRAM, np.zeros(cell.vocab_size, dtype=np.int64))
    write_meta(
        folder,
        Meta(cell.data_id, cell.vocab_size, cell.vocab_size, 0, dtype.str, "word", bins, {}),
        [folder / UNIGRAM],
    )


@contextlib.contextmanager
def _computed_as_on(device: str) -> Iterator[None]:
    """Let the CPU compute loss and attention as ``device`` does."""
    with (
        patch.object(cross_entropy, "LOGITS_CHUNK", {"cpu": LOGITS_CHUNK[device]}),
        patch.object(cross_entropy, "_SOFTMAX", {"cpu": cross_entropy._SOFTMAX[device]}),
        patch.object(base, "IN_FLOAT32", () if device == "cuda" else base.IN_FLOAT32),
    ):
        yield


@contextlib.contextmanager
def _group(size: int) -> Iterator[WorkerGroup]:
    """Yield the first process of a group of ``size``, whose collectives return at once."""
    if size == 1:
        yield WorkerGroup(_CPU)
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    mesh = device_mesh.init_device_mesh

    def real_mesh(
        *arguments: Any, **options: Any
    ) -> Any:  # a mesh computes with the values of its ranks
        with unset_fake_temporarily():
            return mesh(*arguments, **options)

    try:
        with patch.object(distributed, "init_device_mesh", real_mesh):
            yield _OneOfMany(_CPU, 0, size)
    finally:
        dist.destroy_process_group()
