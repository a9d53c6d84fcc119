"""A watchdog for the processes that train one cell: a group that stalls ends, and says whom it waits for."""

import os
import threading
import time
from collections.abc import Callable

import torch.distributed as dist

from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.training.distributed import STALLED, WorkerGroup


class Watchdog:
    """Ends this process when the group stalls, and says which rank the others wait for.

    A thread publishes the number of steps that this process has done, as a heartbeat. A process that is stopped, or
    whose machine is gone, has no heartbeat; one that waits for its data has done fewer steps than the others.
    """

    def __init__(
        self, group: WorkerGroup, stall_seconds: float, label: str, before_exit: Callable[[], None] = lambda: None
    ) -> None:
        self._group, self._seconds, self._label, self._before_exit = group, stall_seconds, label, before_exit
        self._steps = self._beats = 0
        self._last = time.monotonic()
        self._heard: dict[int, tuple[str, float]] = {}
        """By rank its last heartbeat, and when this process first saw it: clocks of other machines say nothing here."""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def note_step(self) -> None:
        """Note that this process did a step."""
        self._steps += 1
        self._last = time.monotonic()

    def __enter__(self) -> "Watchdog":
        if self._group.size > 1:
            self._publish()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _publish(self) -> None:
        assert self._group.store is not None
        self._beats += 1
        self._group.store.set(f"{self._label}/{self._group.rank}", f"{self._steps} {self._beats}")

    def _listen(self) -> None:
        """Note which heartbeats are new."""
        assert self._group.store is not None
        for rank in range(self._group.size):
            heartbeat = self._group.store.get(f"{self._label}/{rank}").decode()
            if rank not in self._heard or self._heard[rank][0] != heartbeat:
                self._heard[rank] = heartbeat, time.monotonic()

    def _run(self) -> None:
        while not self._end.wait(min(1.0, self._seconds / 4)):
            try:
                self._publish()
                waited = time.monotonic() - self._last
                if waited > self._seconds / 4:
                    self._listen()
                if waited > self._seconds:
                    self._say_who()
                    self._before_exit()
                    os._exit(STALLED)
            except dist.DistError:  # rank 0, which holds the store, has ended, so this process will end too
                return

    def _say_who(self) -> None:
        steps = {rank: int(heartbeat.split()[0]) for rank, (heartbeat, _) in self._heard.items()}
        silent = [rank for rank, (_, at) in self._heard.items() if time.monotonic() - at > self._seconds / 2]
        behind = [rank for rank, count in steps.items() if count < max(steps.values())]
        who = ", ".join(map(str, silent or behind)) or "none alone"
        say(
            f"error: {self._label}: no step for {self._seconds:g} s (execution.stall_seconds); the others wait for "
            f"rank {who} of {self._group.size}; start again: training goes on from the last checkpoint"
        )
