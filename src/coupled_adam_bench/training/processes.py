"""The processes that train a cell: this one alone, or one for each of several GPUs."""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import ProcessExitedException, start_processes

GO_ON = 75  # EX_TEMPFAIL of sysexits.h: start again, and training goes on
TOO_LARGE = 71  # EX_OSERR: the micro-batch does not fit into memory


@dataclass(frozen=True)
class Group:
    """This process among those that train one cell."""

    device: torch.device
    rank: int = 0
    size: int = 1

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of each value over all processes, which all must call this."""
        if self.size > 1:
            dist.all_reduce(values)
        return values / self.size

    def wait(self) -> None:
        """Wait until all processes have come to this line."""
        if self.size > 1:
            dist.barrier()


Work = Callable[[Group, list[int]], int]
"""What each process does, until the list of requests to stop has an entry; returns a status."""


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Yield a list that gets the signals which ask this process to stop."""
    stop: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, lambda got, _: stop.append(got))
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def launch(work: Work, devices: Sequence[str], stop: list[int]) -> int:
    """Do ``work`` on each device, each in a process of its own if there are several.

    Returns the status of the first process that ended with one, else 0. A request to stop is passed
    on. Rank and meeting place are arguments: no variable of another launcher is read. An error of
    one process ends all and is raised.
    """
    if len(devices) == 1:
        return work(Group(torch.device(devices[0])), stop)
    with tempfile.TemporaryDirectory() as folder:
        processes = start_processes(  # type: ignore[no-untyped-call]
            _process,
            (work, tuple(devices), Path(folder) / "meeting"),
            len(devices),
            join=False,
            start_method="spawn",
        )
        try:
            # Twenty seconds lie between the end of a process that failed and that of the others.
            while not processes.join(timeout=0.5, grace_period=20):
                if stop:
                    for process in processes.processes:
                        process.terminate()
        except ProcessExitedException as error:
            if error.exit_code in (GO_ON, TOO_LARGE):
                return error.exit_code
            if stop:  # one that was asked before it could listen
                return GO_ON
            raise
    return 0


def _process(rank: int, work: Work, devices: tuple[str, ...], meeting: Path) -> None:
    """Do the work of one process of several; torch ends it by SIGINT if its parent is killed."""
    device, size = torch.device(devices[rank]), len(devices)
    with stop_requests() as stop:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        store = dist.FileStore(str(meeting), size)  # type: ignore[attr-defined]
        dist.init_process_group(
            backend, timeout=timedelta(minutes=30), store=store, rank=rank, world_size=size
        )
        status = work(Group(device, rank, size), stop)
        if status == TOO_LARGE:
            os._exit(status)  # at once: the others may wait for this one in a reduction
        dist.destroy_process_group()
    sys.exit(status)
