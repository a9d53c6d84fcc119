"""The count of tensors against those that live while a real model trains."""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from optimizer_entries import BUILT_IN
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coupled_adam_bench.machine.device import LOGITS_CHUNK
from coupled_adam_bench.models.build import build_model
from coupled_adam_bench.optim.build import build_optimizers
from coupled_adam_bench.study.catalogue.architectures import ARCHITECTURES
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import Execution, parse_study
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.jobs import train
from coupled_adam_bench.training.memory import (
    checkpoint_bytes,
    embedding_params,
    largest_micro_batch,
    layer_bytes_per_token,
    memory_of,
    model_bytes,
    optimizer_bytes,
)

GPT2 = {"n_layer": 4, "n_head": 4, "d_model": 64}
STABLELM = {"architecture": "stablelm", **GPT2}
CONTEXTS = {"architecture": "contexts", "n_contexts": 64, "d_model": 64}


def sizes_of(architecture: str) -> dict[str, Any]:
    return CONTEXTS if architecture == "contexts" else {**GPT2, "architecture": architecture}


class Living(TorchDispatchMode):
    """Counts the bytes of the storages that live."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def see(self, values: Any) -> None:
        for value in tree_leaves(values):
            if (
                isinstance(value, torch.Tensor)
                and (storage := value.untyped_storage()) not in self._known
            ):
                self._known[storage] = storage.nbytes()
                self.bytes += storage.nbytes()
                weakref.finalize(storage, self._drop, storage.nbytes())
        self.peak = max(self.peak, self.bytes)

    def _drop(self, n_bytes: int) -> None:
        self.bytes -= n_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.see(output)
        return output


@pytest.fixture
def cell_of(tiny_study: Callable[..., dict[str, Any]]) -> Callable[..., Cell]:
    def cell_of(
        model: dict[str, Any], optimizer: Any = "adamw", vocab_size: int = 512, **changes: Any
    ) -> Cell:
        settings = tiny_study()
        settings["data"] |= {"vocab_size": vocab_size}
        settings["models"] = [{"name": "m", "learning_rate": 0.001, **model}]
        settings["training"] |= {"seq_len": 64, "batch_sequences": 8, **changes.get("training", {})}
        settings["grid"] = [
            {"models": ["m"], "tokens": [{"steps": 20}], "optimizers": [optimizer], "seeds": [1]}
        ]
        settings["execution"] |= changes.get("execution", {})
        return next(iter(make_plan(parse_study(settings)).cells.values()))

    return cell_of


def living_peak(cell: Cell, micro: int, steps: int = 2) -> int:
    """Return the largest number of bytes that lives in the second step of training."""
    training, batch = cell.training, cell.training.batch_sequences
    counts = np.zeros(cell.vocab_size, dtype=np.int64)
    model = build_model(
        cell.model, cell.vocab_size, training.seq_len, cell.optimizer.soft_cap, counts
    )
    model.init_weights(1, 0.02)
    optimizers = build_optimizers(
        model, model.embedding_parameters(), cell.optimizer, training, 0.001
    )
    living = Living()
    living.see(list(model.parameters()))
    with living:
        for _ in range(steps):
            inputs, targets = (
                torch.randint(0, cell.vocab_size, (batch, training.seq_len)) for _ in range(2)
            )
            for start in range(0, batch, micro):
                rows = slice(start, start + micro)
                with torch.autocast("cpu", torch.bfloat16, enabled=training.precision == "bf16"):
                    loss = model(inputs[rows], targets[rows], reduction="sum") / targets.numel()
                loss.backward()
            optimizers.clip_grad_norm_(model.parameters(), 1.0)
            optimizers.step()
            optimizers.zero_grad()
    return living.peak


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("micro", [8, 2])
def test_the_count_is_what_lives_in_training(architecture, precision, micro, cell_of):
    changes = {"training": {"precision": precision}, "execution": {"micro_batch_sequences": micro}}
    cell = cell_of(sizes_of(architecture), **changes)
    memory = memory_of(cell, cell.study.execution)
    assert memory.micro_batch_sequences == micro
    assert memory.peak == pytest.approx(living_peak(cell, micro), rel=0.04)


@pytest.mark.parametrize(
    ("model", "optimizer", "vocab_size", "batch"),
    [
        (GPT2, "coupled_adam", 512, 8),
        (GPT2, {"name": "sgd", "lr_factor": 1}, 4096, 8),
        ({**GPT2, "tied": False}, "adamw", 4096, 4),
        (GPT2, {"name": "adamw", "soft_cap": 30}, 4096, 8),
        (
            GPT2,
            "adamw",
            8192,
            1,
        ),  # fullest at the end, when the gradients of a tied embedding are added
        ({**GPT2, "n_layer": 8}, "adamw", 65, 8),  # fullest in the backward pass of the last layer
        ({**STABLELM, "n_layer": 8}, "adamw", 65, 8),
        ({**CONTEXTS, "tied": False}, {"name": "adamw", "soft_cap": 30}, 4096, 8),
    ],
    ids=str,
)
def test_the_fullest_moment_is_found(model, optimizer, vocab_size, batch, cell_of):
    cell = cell_of(model, optimizer, vocab_size, training={"batch_sequences": batch})
    assert memory_of(cell, cell.study.execution).peak == pytest.approx(
        living_peak(cell, batch), rel=0.04
    )


OPTIMIZERS = [
    *BUILT_IN,
    {"name": "custom", "path": "torch.optim.Adam", "key": "a", "label": "A"},
    {"embedding": "ember", "head": "adamw"},
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("core", ["adamw", "muon"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_states_of_optimizers(optimizer, core, tied, cell_of):
    if tied and "head" in optimizer:
        pytest.skip("an optimizer for each matrix is refused where there is one matrix")
    cell = cell_of(
        {**GPT2, "n_layer": 1, "tied": tied}, optimizer, training={"core_optimizer": core}
    )
    model = build_model(cell.model, cell.vocab_size, cell.training.seq_len)
    optimizers = build_optimizers(
        model, model.embedding_parameters(), cell.optimizer, cell.training, 0.001
    )
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step()
    states = [state for one in optimizers.by_name().values() for state in one.state.values()]
    tensors = [
        value for state in states for value in state.values() if isinstance(value, torch.Tensor)
    ]
    real = sum(tensor.nbytes for tensor in tensors if tensor.ndim)  # without the counts of steps
    assert optimizer_bytes(cell) == real
    assert embedding_params(cell) == sum(
        parameter.numel() for parameter in model.embedding_parameters()
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("optimizer", ["adamw", "coupled_adam"])
def test_files_of_a_run(architecture, optimizer, cell_of, tiny_data, tmp_path):
    cell = cell_of(
        {**sizes_of(architecture), "d_model": 960 if architecture == "contexts" else 96},
        optimizer,
        64,
        training={"seq_len": 16, "batch_sequences": 4},
        execution={"checkpoint_every": 10},
    )
    assert (
        train(cell, cell.study.execution, tiny_data, tmp_path, WorkerGroup(torch.device("cpu")))
        == 0
    )
    checkpoints = sorted((tmp_path / "checkpoints").iterdir())
    assert len(checkpoints) == 2
    real = sum(path.stat().st_size for path in checkpoints[-1].glob("*.distcp"))
    assert real == pytest.approx(checkpoint_bytes(cell), rel=0.05)
    weights = (tmp_path / "model" / "model.safetensors").stat().st_size
    assert 0 <= weights - model_bytes(cell) < 8000  # the header


def test_a_layer_by_hand(cell_of):
    # Norms' inputs 4 + 4 bytes; their outputs, q, k, v and the attention's output 2 x 6; GELU's
    # input and output 2 x 8.
    per_width, statistics = 4 + 4 + 2 * 6 + 2 * 8, 2 * 2 * 4 + 4 * 4
    cell = cell_of(GPT2, training={"precision": "bf16"})
    assert layer_bytes_per_token(cell, on_gpu=True) == 64 * per_width + statistics


def test_shards_by_hand(cell_of):
    cell = cell_of(GPT2, training={"precision": "bf16"}, execution={"gpus": 4, "parallel": "fsdp"})
    execution = cell.study.execution
    n_params, layer = cell.n_params, 12 * 64**2
    root = n_params - 4 * layer - 4 * 2 * 64
    whole = memory_of(cell, execution, 2)
    assert (whole.weights, whole.optimizer) == (n_params, 2 * n_params)
    assert whole.gathered == 4 * (root + 3 * layer)
    assert whole.casts == 2 * 4 * layer
    assert whole.gradients == 4 * root + n_params
    several = memory_of(cell, execution, 1)
    assert (several.gradients, several.kept_gradients) == (whole.gradients, n_params)
    ddp = memory_of(cell, execution.model_copy(update={"parallel": "ddp"}), 2)
    assert (ddp.weights, ddp.gradients, ddp.optimizer) == (4 * n_params, 4 * n_params, 8 * n_params)
    assert (ddp.gathered, ddp.kept_gradients) == (0, 4 * n_params)


def test_the_largest_micro_batch_fits_and_the_next_does_not(cell_of):
    cell = cell_of(GPT2, training={"batch_sequences": 30}, execution={"gpus": 1})
    execution: Execution = cell.study.execution
    peaks = {micro: memory_of(cell, execution, micro).peak for micro in range(1, 31)}
    assert largest_micro_batch(cell, execution, peaks[30] / 0.9 + 1) == 30
    assert (
        largest_micro_batch(cell, execution, peaks[12] / 0.9 + 1) == 10
    )  # three of 10 rather than 12, 12 and 6
    assert largest_micro_batch(cell, execution, peaks[1] / 0.9 + 1) == 1
    assert largest_micro_batch(cell, execution, peaks[1] / 0.9 - 9) is None


def test_the_chunk_is_that_of_the_device(cell_of):
    cell = cell_of(GPT2, vocab_size=4096, training={"batch_sequences": 1024})
    cpu, gpu = (memory_of(cell, Execution(gpus=gpus)).head for gpus in (0, 1))
    assert gpu - cpu == 4096 * (8 * LOGITS_CHUNK["cuda"] - 4 * LOGITS_CHUNK["cpu"])
