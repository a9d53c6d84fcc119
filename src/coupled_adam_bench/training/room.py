"""Micro-batches that did not fit into memory: which errors say so, and what a run remembers of
them."""

from pathlib import Path

import torch

from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store.files import read_json, write_json
from coupled_adam_bench.store.paths import RunFiles

# What errors say when a library beside torch's allocator gets no memory. cuBLAS says "not
# initialized" too if there is none left for its handle, and NCCL quotes CUDA's "out of memory".
_PHRASES = (
    "out of memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Tell whether an error of torch, cuBLAS, cuDNN or NCCL says that memory does not suffice."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return any(phrase in str(error) for phrase in _PHRASES)


def remember_too_large(run_dir: Path, sequences: int, device: torch.device) -> None:
    """Write into a run's folder that micro-batches of so many sequences do not fit here."""
    path = RunFiles(run_dir).micro_batch
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"too_large": sequences, "memory": _memory(device)})


def fitting(run_dir: Path, sequences: int, device: torch.device) -> int:
    """Return a micro-batch of at most ``sequences``, halved until it is smaller than one that did
    not fit.

    What happened on a device with another size of memory counts for nothing, and neither does a
    file that cannot be read.
    """
    path = RunFiles(run_dir).micro_batch
    if not path.exists():
        return sequences
    try:
        found = read_json(path)
        too_large, memory = int(found["too_large"]), found["memory"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        say(f"{path} cannot be read and counts for nothing: {error}")
        return sequences
    if memory != _memory(device):
        return sequences
    while sequences > 1 and too_large <= sequences:
        sequences //= 2
    return sequences


def _memory(device: torch.device) -> int | None:
    """Return the bytes of a GPU's memory; None on a CPU."""
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory)
