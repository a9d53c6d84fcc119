"""The micro-batch of a process: what did not fit into memory, and what is tried instead."""

from pathlib import Path

import torch

from coupled_adam_bench.store.files import read_json, write_json

_FILE = "micro_batch.json"
_PHRASES = ("out of memory", "can't allocate memory", "ALLOC_FAILED", "CUBLAS_STATUS_NOT_INIT")
"""What torch, NCCL, cuBLAS and cuDNN say when they get no memory."""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Tell whether an error says that memory does not suffice."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return any(phrase in str(error) for phrase in _PHRASES)


def remember_too_large(folder: Path, sequences: int, device: torch.device) -> None:
    """Write into a run's folder that so many sequences at once do not fit here."""
    write_json(folder / _FILE, {"too_large": sequences, "memory": _memory(device)})


def micro_batch(folder: Path, sequences: int, device: torch.device) -> int:
    """Return how many of ``sequences`` to take at once: halved until fewer than what did not fit.

    What did not fit into a memory of another size counts for nothing.
    """
    path = folder / _FILE
    found = read_json(path) if path.exists() else None
    if found is not None and found["memory"] == _memory(device):
        while sequences > 1 and sequences >= found["too_large"]:
            sequences //= 2
    return sequences


def _memory(device: torch.device) -> int | None:
    """Return the bytes of a GPU's memory; None on a CPU."""
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory)
