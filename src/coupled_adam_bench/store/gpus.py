"""GPUs that a job has for itself, on a machine where no queue hands them out."""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

LEASES = Path(tempfile.gettempdir()) / f"coupled-adam-bench-{os.getuid()}"
"""One folder for all studies of a user on this machine."""
_POLL_SECONDS = 0.5


def _names() -> list[str]:
    """Return the name that each GPU of this process has in all processes, in torch's order."""
    import torch

    count = torch.cuda.device_count()
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(count)]


@contextmanager
def lease(
    n: int,
    names: Sequence[str] | None = None,
    folder: Path = LEASES,
) -> Iterator[tuple[int, ...]]:
    """Yield the indices of ``n`` GPUs that no other job has, as soon as so many are free.

    The kernel ends a lease with its process. ``names`` are those of all GPUs, by default as torch
    sees them. ``ValueError`` if there are fewer than ``n``.
    """
    if n and names is None:
        names = _names()
    if n > len(names or ()):
        raise ValueError(
            f"execution.gpus: {n}, but there are {len(names or ())} here that torch can use; with"
            " execution.gpus: 0 the study runs on the CPU"
        )
    if n:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        # All or nothing, so that two jobs never wait for each other.
        with ExitStack() as held:
            own: list[int] = []
            for index, name in enumerate(names or ()):
                if len(own) == n:
                    break
                try:
                    held.enter_context(FileLock(folder / f"{name}.lock", timeout=0))
                except Timeout:
                    continue
                own.append(index)
            if len(own) == n:
                yield tuple(own)
                return
        time.sleep(_POLL_SECONDS)
