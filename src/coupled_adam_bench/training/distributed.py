"""The processes that train one cell together: their group, what they agree on, and a watch over them.

Started by ``torchrun`` or by :func:`launch`; a process on its own is a group of one and opens no connection.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from coupled_adam_bench.device import pick_device

RESUME_ME = 75  # EX_TEMPFAIL of sysexits.h: stopped on request with a checkpoint, start again to go on
STALLED = 70  # EX_SOFTWARE: a process of the group has come to a halt
# What workers have for their last checkpoint, within the two minutes of a cluster's warning (rules/train.smk).
_SHUTDOWN_SECONDS = 100

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """This process among those that train one cell."""

    device: torch.device
    rank: int = 0
    size: int = 1
    store: Store | None = None
    votes: dist.ProcessGroup | None = None
    """Of the CPUs: small agreements, apart from the gradients."""
    saves: dist.ProcessGroup | None = None
    """Of the CPUs: checkpoints, which are written while training goes on."""

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files that exist once."""
        return self.rank == 0

    def together(self, function: Callable[[], T]) -> T:
        """Call ``function`` in all processes and return its result in each; the error of any of them rises in all.

        For what may fail in one process alone, before the others wait for it in a collective.
        """
        if self.size == 1:
            return function()
        mine: Exception | None = None
        try:
            result = function()
        except Exception as error:
            mine = error
        errors: list[Exception | None] = [None] * self.size
        dist.all_gather_object(errors, mine, group=self.votes)
        errors[self.rank] = mine  # with its traceback
        for risen in errors:
            if risen is not None:
                raise risen
        return result

    def from_first(self, function: Callable[[], T]) -> T:
        """Call ``function`` in the first process and return its result in all; its errors rise in all."""
        outcome = [self.together(lambda: function() if self.is_first else None)]
        if self.size > 1:
            dist.broadcast_object_list(outcome, src=0, group=self.votes)
        result: T = outcome[0]  # type: ignore[assignment]
        return result

    def lost(self, error: BaseException) -> bool:
        """Tell whether an error only says that another process has ended, which has told why or was killed."""
        # gloo's "Connection closed by peer" and "reset by peer"; an OSError would be of the disk.
        return self.size > 1 and not isinstance(error, OSError) and "by peer" in str(error)

    def sum(self, values: Tensor) -> Tensor:
        """Return the element-wise sum of ``values`` over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def parallelize(self, model: nn.Module, layers: Sequence[nn.Module], parallel: str) -> nn.Module:
        """Return the module to call: ``model`` in FSDP2 shards, layer by layer, or behind DDP; alone, itself.

        The gradients of both are means over the processes, synchronised when :func:`accumulating` is left.
        """
        if self.size == 1:
            return model
        if parallel == "fsdp":
            mesh = init_device_mesh(self.device.type, (self.size,))
            for layer in layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)


@contextlib.contextmanager
def accumulating(module: nn.Module, last: bool) -> Iterator[None]:
    """Keep the gradients of a micro-batch in this process, unless it is the ``last`` of its step."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
        yield
    elif isinstance(module, nn.parallel.DistributedDataParallel) and not last:
        with module.no_sync():
            yield
    else:
        yield


@contextlib.contextmanager
def open_group(device: str, stall_seconds: float) -> Iterator[Group]:
    """Join the processes that ``torchrun`` started with this one, if it did, and leave them at the end."""
    name = pick_device(device)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Group(torch.device(name, 0) if name == "cuda" else torch.device(name))
        return
    local = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if name == "cuda" else torch.device("cpu")
    if local.type == "cuda":
        if (n_gpus := torch.cuda.device_count()) <= local.index:
            raise ValueError(
                f"execution.gpus: process {local.index + 1} of this machine has no GPU, torch sees {n_gpus}; "
                "start no more processes than there are GPUs"
            )
        torch.cuda.set_device(local)
    timeout = timedelta(seconds=2 * stall_seconds)  # the watch, which names the rank, comes first
    store, rank, size = next(rendezvous("env://"))
    backend = "cpu:gloo,cuda:nccl" if local.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=PrefixStore("training", store), rank=rank, world_size=size, timeout=timeout)
    try:
        votes, saves = (dist.new_group(backend="gloo", timeout=timeout) for _ in range(2))
        yield Group(local, rank, size, PrefixStore("watch", store), votes, saves)
    finally:
        dist.destroy_process_group()


def whole(tensor: Tensor) -> Tensor:
    """Return a sharded tensor whole (all processes must ask), and any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class StopVote:
    """Lets all processes stop after the same step once one of them was asked to, without waiting for each other.

    The vote of a step is counted in the next one, while the device computes.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._flag = torch.zeros((), dtype=torch.int32)
        self._work: dist.Work | None = None

    def __call__(self, stop: bool) -> bool:
        """Cast this step's vote and return whether any process asked in the step before; alone, at once."""
        if self._group.size == 1:
            return stop
        decided = self.count()
        self._flag.fill_(stop or decided)
        self._work = dist.all_reduce(self._flag, dist.ReduceOp.MAX, group=self._group.votes, async_op=True)
        return decided

    def count(self) -> bool:
        """Return the outcome of the vote that is under way."""
        if self._work is None:
            return False
        self._work.wait()
        self._work = None
        return bool(self._flag)


class Watch:
    """Ends this process when the group has come to a halt, and says which rank keeps the others waiting.

    A thread tells the others how many steps this process has done, and that it lives: a process that is stopped, or
    whose machine is gone, tells nothing any more; one that waits for its data has done less than the others.
    """

    def __init__(self, group: Group, stall_seconds: float, label: str) -> None:
        self._group, self._seconds, self._label = group, stall_seconds, label
        self._count = 0
        self._last = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def moved(self) -> None:
        """Note that this process did something."""
        self._count += 1
        self._last = time.monotonic()

    def __enter__(self) -> "Watch":
        if self._group.size > 1:
            self._tell()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _tell(self) -> None:
        assert self._group.store is not None
        self._group.store.set(f"{self._label}/{self._group.rank}", f"{self._count} {time.time()}")

    def _run(self) -> None:
        while not self._end.wait(min(1.0, self._seconds / 4)):
            try:
                self._tell()
                if time.monotonic() - self._last > self._seconds:
                    self._say_who()
                    os._exit(STALLED)
            except dist.DistError:  # the first process, which keeps the store, has ended: so will this one
                return

    def _say_who(self) -> None:
        assert self._group.store is not None
        told = [self._group.store.get(f"{self._label}/{rank}").split() for rank in range(self._group.size)]
        counts = [int(count) for count, _ in told]
        silent = [rank for rank, (_, at) in enumerate(told) if time.time() - float(at) > self._seconds / 2]
        behind = [rank for rank, count in enumerate(counts) if count < max(counts)]
        who = ", ".join(map(str, silent or behind)) or "none alone"
        print(
            f"error: {self._label}: no step for {self._seconds:g} s (execution.stall_seconds); the others wait for "
            f"rank {who} of {self._group.size}; start again: training goes on from the last checkpoint",
            file=sys.stderr,
            flush=True,
        )


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Run ``python -m coupled_adam_bench ARGUMENTS`` in several processes as torchrun does and return their status."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SHUTDOWN_SECONDS))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=str(os.getpid()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "coupled_adam_bench", *arguments)
    except SignalException:
        return RESUME_ME
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        killed = {rank: -code for rank, code in codes.items() if code < 0 and -code != signal.SIGTERM}
        for rank, number in killed.items():
            cause = ", as happens when memory is short (execution.train_mem_mb)" if number == signal.SIGKILL else ""
            print(
                f"error: rank {rank} of {processes} was ended by signal {number}, {signal.strsignal(number)}{cause}; "
                "start again: training goes on from the last checkpoint",
                file=sys.stderr,
            )
        status = next((status for status in (STALLED, 2, RESUME_ME) if status in codes.values()), 1)
        if status == 1 and not killed:
            print(f"error: {error}", file=sys.stderr)
        return status
    return 0
