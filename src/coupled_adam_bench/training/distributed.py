"""The processes that train one cell: their group, their agreements, and how they are started.

They are started by :func:`launch`, which marks them. Any other process is a group of one and opens
no connection, even if its environment has the names of another launcher.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from coupled_adam_bench.machine.device import check_gpus, pick_device
from coupled_adam_bench.machine.process import environment
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.machine.surroundings import LAUNCHER, is_launched
from coupled_adam_bench.training.memory import STOP_SECONDS
from coupled_adam_bench.training.stop_requests import RESUME_ME

TOO_LARGE = 71  # EX_OSERR: a micro-batch does not fit into the memory of a process of the group
HALVED = "training goes on from the last checkpoint, with micro-batches half as large"
_MARGIN_SECONDS = 20  # between the end of the processes and that of their job
_STALL = timedelta(minutes=30)
"""For which the processes of a group wait for one that does nothing, before torch ends them with an
error."""

T = TypeVar("T")


@dataclass(frozen=True)
class WorkerGroup:
    """This process among those that train one cell."""

    device: torch.device
    rank: int = 0
    size: int = 1
    votes: dist.ProcessGroup | None = None
    """CPU process group for small agreements, separate from that of the gradients."""
    saves: dist.ProcessGroup | None = None
    """CPU process group for checkpoints, which are written while training continues."""

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes the files that all ranks share."""
        return self.rank == 0

    def run_on_all(self, function: Callable[[], T]) -> T:
        """Call ``function`` in all processes and return each its own result; an error of one is
        raised in all.

        Use it for calls that can fail in one process while the others would wait for it in the next
        collective.
        """
        if self.size == 1:
            return function()
        own_error: Exception | None = None
        try:
            result = function()
        except Exception as error:
            own_error = error
        errors: list[Exception | None] = [None] * self.size
        dist.all_gather_object(errors, own_error, group=self.votes)
        errors[self.rank] = own_error  # the gathered copy has lost its traceback
        for raised in errors:
            if raised is not None:
                raise raised
        return result

    def run_on_first(self, function: Callable[[], T]) -> T:
        """Call ``function`` on rank 0 and return its result in all processes; its error is raised
        in all."""
        outcome = [self.run_on_all(lambda: function() if self.is_first else None)]
        if self.size > 1:
            dist.broadcast_object_list(outcome, src=0, group=self.votes)
        result: T = outcome[0]  # type: ignore[assignment]
        return result

    def lost_peer(self, error: BaseException) -> bool:
        """Tell whether an error only says that another process has ended; its own error is
        elsewhere."""
        # These are gloo's "Connection closed by peer" and "reset by peer"; an OSError would come
        # from the disk.
        return self.size > 1 and not isinstance(error, OSError) and "by peer" in str(error)

    def smallest(self, value: int) -> int:
        """Return the smallest ``value`` of all processes."""
        if self.size == 1:
            return value
        smallest = torch.tensor([value])
        dist.all_reduce(smallest, dist.ReduceOp.MIN, group=self.votes)
        return int(smallest)

    def sum(self, values: Tensor) -> Tensor:
        """Return the element-wise sum of ``values`` over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def parallelize(
        self, model: nn.Module, layers: Sequence[nn.Module], parallel: str
    ) -> nn.Module:
        """Return the module to call: ``model`` sharded layer by layer with FSDP2, wrapped in DDP,
        or unchanged in a single process.

        FSDP2 and DDP average the gradients over the processes when :func:`accumulating` is left.
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
        return nn.parallel.DistributedDataParallel(
            model, device_ids=devices, gradient_as_bucket_view=True
        )


def accumulating(module: nn.Module, last: bool) -> contextlib.AbstractContextManager[None]:
    """Let DDP average gradients only after the ``last`` micro-batch of a step.

    FSDP2 averages after each one, because it would keep whole gradients until then.
    """
    ddp = isinstance(module, nn.parallel.DistributedDataParallel)
    return module.no_sync() if ddp and not last else contextlib.nullcontext()  # type: ignore[operator]


def sharing_casts(
    module: nn.Module, device: torch.device
) -> contextlib.AbstractContextManager[object]:
    """Let the micro-batches of a step share the weights that autocast has cast for the first one.

    Autocast drops them when its outermost context ends, so this is one that casts nothing itself.
    Sharded weights are cast for each micro-batch: FSDP2 loses gradients that reach it through the
    casts of an earlier forward pass.
    """
    if isinstance(module, FSDPModule):
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


@contextlib.contextmanager
def reading(model: nn.Module) -> Iterator[None]:
    """Compute forward passes without gradients; at the end a sharded model is in shards again.

    FSDP2 leaves the root of a model whole after its forward pass, for the backward pass that does
    not come here.
    """
    with torch.no_grad():
        yield
    if isinstance(model, FSDPModule):
        model.reshard()


@contextlib.contextmanager
def open_group(device: str) -> Iterator[WorkerGroup]:
    """Yield the group of the processes that :func:`launch` started, or a group of one in any other
    process."""
    name = pick_device(device)
    if not is_launched():
        yield WorkerGroup(torch.device(name, 0) if name == "cuda" else torch.device(name))
        return
    if name == "cuda":
        device_of_rank = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        check_gpus(device_of_rank.index + 1)
        torch.cuda.set_device(device_of_rank)
        backend = "cpu:gloo,cuda:nccl"
    else:
        device_of_rank = torch.device("cpu")
        backend = "gloo"
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend, timeout=_STALL)
    try:
        # Votes and the writing of checkpoints run beside the training, so each has a group of its
        # own: collectives of one group must come in the same order in all processes.
        votes, saves = (dist.new_group(backend="gloo", timeout=_STALL) for _ in range(2))
        yield WorkerGroup(device_of_rank, rank, size, votes, saves)
    finally:
        dist.destroy_process_group()


def whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor, for which all processes must call this; return any other tensor
    unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class StopVote:
    """Lets all processes stop after the same step once one of them was asked to stop.

    The vote of a step is counted in the next step, so no process waits for another.
    """

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group
        self._flag = torch.zeros((), dtype=torch.int32)
        self._work: dist.Work | None = None

    def __call__(self, stop: bool) -> bool:
        """Cast this step's vote and return the outcome of the step before; a single process decides
        at once."""
        if self._group.size == 1:
            return stop
        decided = self.count()
        self._flag.fill_(stop or decided)
        self._work = dist.all_reduce(
            self._flag, dist.ReduceOp.MAX, group=self._group.votes, async_op=True
        )
        return decided

    def count(self) -> bool:
        """Return the outcome of the pending vote."""
        if self._work is None:
            return False
        self._work.wait()
        self._work = None
        return bool(self._flag)


def launch(processes: int, arguments: Sequence[str], stop_seconds: int = STOP_SECONDS) -> int:
    """Run ``python -m coupled_adam_bench ARGUMENTS`` in several processes, as torchrun does; return
    their status.

    Processes that were asked to stop have ``stop_seconds`` for it, and are killed then; they stop
    too when this process has ended. While a micro-batch does not fit, all are started again with
    half of it: they cannot agree on that themselves, since some already wait in a collective
    operation that another one will never enter.
    """
    seconds = str(stop_seconds - _MARGIN_SECONDS)
    settings = {LAUNCHER: seconds, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": seconds}
    with environment(settings):
        status = _launch(processes, arguments)
        while status == TOO_LARGE:
            say(HALVED)
            status = _launch(processes, arguments)
    return status


def _launch(processes: int, arguments: Sequence[str]) -> int:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=str(os.getpid()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        # torch would look up this machine's own name, which may not resolve
        local_addr="localhost",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "coupled_adam_bench", *arguments)
    except SignalException:
        return RESUME_ME
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        killed = {
            rank: -code for rank, code in codes.items() if code < 0 and -code != signal.SIGTERM
        }
        for rank, number in killed.items():
            cause = (
                ", as happens when memory is short (execution.train_mem_mb)"
                if number == signal.SIGKILL
                else ""
            )
            say(
                f"error: rank {rank} of {processes} was ended by signal {number},"
                f" {signal.strsignal(number)}{cause}; start again: training goes on from the last"
                " checkpoint"
            )
        status = next(
            (status for status in (TOO_LARGE, 2, RESUME_ME) if status in codes.values()), 1
        )
        if status == 1 and not killed:
            say(f"error: {error}")
        return status
    return 0
