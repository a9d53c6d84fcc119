"""Gives each job of a machine its own GPUs; on a cluster, the cluster does that."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

from coupled_adam_bench.machine.process import environment
from coupled_adam_bench.machine.visible_gpus import VISIBLE, visible_gpus
from coupled_adam_bench.store.locks import FolderLock

_POLL_SECONDS = 1.0


@contextmanager
def leased_gpus(count: int, folder: Path) -> Iterator[None]:
    """Hide all GPUs but ``count`` that no other job has leased, from this process and those that it
    starts.

    Waits until so many are free. Locks in ``folder`` hold them, at most as long as this process
    lives. ``ValueError`` if there are fewer; of a machine that names no GPU at all, torch says
    later what is wrong.
    """
    gpus = visible_gpus()
    if count == 0 or not gpus:
        yield
        return
    if len(gpus) < count:
        raise ValueError(
            f"execution.gpus: {count}, but this machine shows {len(gpus)} ({', '.join(gpus)});"
            f" lower it, or let {VISIBLE} name more"
        )
    with ExitStack() as held:
        names = _lock(gpus, count, folder, held)
        # Whoever has too few lets them go: two that wait would hold what the other needs.
        while len(names) < count:
            held.close()
            time.sleep(_POLL_SECONDS)
            names = _lock(gpus, count, folder, held)
        with environment({VISIBLE: ",".join(names)}):
            yield


def _lock(gpus: list[str], count: int, folder: Path, held: ExitStack) -> list[str]:
    """Lock at most ``count`` free GPUs until ``held`` is closed, and return their names."""
    names: list[str] = []
    for gpu in gpus:
        lock = FolderLock(folder, f"{quote(gpu, safe='')}.lock")  # MIG-GPU-<uuid>/1/2 has slashes
        if len(names) < count and lock.acquire(0):
            held.callback(lock.release)
            names.append(gpu)
    return names
