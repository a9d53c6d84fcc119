"""The device of a stage and the processors that it may use; torch is imported only by :func:`pick_device`."""

import os

from coupled_adam_bench.progress import say

MAX_THREADS_PER_PROCESSOR = 4
# Tokens whose logits are held at once. On a CPU, the products reach full speed and the logits stay in the cache (see
# docs/performance.md); on a GPU, the products occupy all multiprocessors.
LOGITS_CHUNK = {"cpu": 256, "cuda": 4096}


def pick_device(device: str) -> str:
    """Resolve ``auto`` to ``cuda`` or ``cpu``; raise ``ValueError`` for ``cuda`` if torch sees no GPU."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: 'cuda' was asked for, but torch sees no GPU; use 'cpu' or 'auto'")
    return device


def each_device(device: str) -> tuple[str, ...]:
    """Return the names of all devices of a kind that this process may use: each visible GPU, or the CPU."""
    import torch

    return tuple(f"cuda:{index}" for index in range(torch.cuda.device_count())) if device == "cuda" else (device,)


def n_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_threads(setting: str, threads: int) -> None:
    """Compare a setting's number of threads with the processors that this process may use.

    More threads than processors are slower, so a line on stderr says so. Far more would overload the machine and raise
    ``ValueError``.
    """
    processors = n_processors()
    most = MAX_THREADS_PER_PROCESSOR * processors
    if threads > most:
        raise ValueError(
            f"{setting}: {threads}, but this process may use {processors} processors; at most {most} threads are "
            f"allowed, {processors} are the fastest; lower it, or start on a machine with more"
        )
    if threads > processors:
        say(f"{setting}: {threads} threads on {processors} processors are slower than {processors}")
