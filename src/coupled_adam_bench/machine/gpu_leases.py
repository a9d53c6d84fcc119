"""Gives each job of a machine GPUs of its own; on a cluster, the cluster does that."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

from coupled_adam_bench.machine.process import environment
from coupled_adam_bench.store.locks import FolderLock

VISIBLE = "CUDA_VISIBLE_DEVICES"
_POLL_SECONDS = 1.0


def named_gpus(value: str) -> list[str]:
    """Return the GPUs that a value of ``CUDA_VISIBLE_DEVICES`` names, as CUDA reads it.

    They are numbers, or ``GPU-...``, or ``MIG-...``. The list ends before the first entry of another kind, such as
    ``-1`` or ``NoDevFiles``. If it names a GPU twice, CUDA takes none of it.
    Source: CUDA C++ Programming Guide, "Environment Variables"; ``torch.cuda._parse_visible_devices`` does the same.
    """
    entries = [entry.strip() for entry in value.split(",")]
    kind = next((kind for kind in ("GPU-", "MIG-") if entries[0].startswith(kind)), None)
    names = []
    for entry in entries:
        number = re.match(r"\+?(\d+)", entry)  # "1gpu" is GPU 1 too
        if kind is None and number is not None:
            names.append(str(int(number[1])))
        elif kind is not None and entry.startswith(kind):
            names.append(entry)
        else:
            break
    return names if len({*names}) == len(names) else []


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them; torch is not loaded."""
    if VISIBLE in os.environ:
        return named_gpus(os.environ[VISIBLE])
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(index) for index, _ in enumerate(line for line in listed.splitlines() if line.startswith("GPU "))]


@contextmanager
def leased_gpus(count: int, folder: Path) -> Iterator[None]:
    """Hide all GPUs but ``count`` that no other job has leased, from this process and those that it starts.

    Waits until so many are free. Locks in ``folder`` hold them, at most as long as this process lives. ``ValueError``
    if there are fewer; of a machine that names no GPU at all, torch says later what is wrong.
    """
    gpus = visible_gpus()
    if count == 0 or not gpus:
        yield
        return
    if len(gpus) < count:
        raise ValueError(
            f"execution.gpus: {count}, but this machine shows {len(gpus)} ({', '.join(gpus)}); lower it, or let "
            f"{VISIBLE} name more"
        )
    with ExitStack() as held:
        while len(names := _lock(gpus, count, folder, held)) < count:
            held.close()
            time.sleep(_POLL_SECONDS)
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
