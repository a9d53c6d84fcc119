"""The frame around the work on a run: the lock of its folder, and the note that reveals a kill."""

import contextlib
import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store.locks import FolderLock
from coupled_adam_bench.store.runs import begin_attempt, check_own, end_attempt
from coupled_adam_bench.training.distributed import HALVED, TOO_LARGE, StopVote, WorkerGroup
from coupled_adam_bench.training.micro_batch import MicroBatchError

Job = Callable[[WorkerGroup], int]
_VOTE_SECONDS = 1.0


@contextlib.contextmanager
def locked(run_dir: Path, group: WorkerGroup, stop: Sequence[int]) -> Iterator[bool]:
    """Hold the lock of a run folder in the first process; wait while another job holds it.

    Yields false if a request to stop in any process has ended the wait. ``ValueError`` if the folder holds the run of
    another cell.
    """
    with contextlib.ExitStack() as stack:
        locks: list[FolderLock] = []  # rank 0 has one, the others none

        def acquire() -> bool:
            if not locks:
                locks.append(FolderLock(run_dir))
                stack.callback(locks[0].release)
            return locks[0].acquire(_VOTE_SECONDS)

        vote = StopVote(group)
        is_ours = group.run_on_first(acquire)
        while not is_ours and not vote(bool(stop)):
            is_ours = group.run_on_first(acquire)
        vote.count()
        if is_ours:
            group.run_on_first(lambda: check_own(run_dir))
        yield is_ours


class Attempt:
    """An attempt to train a run, noted in the run's folder until it ends; after a kill the note remains."""

    def __init__(self, run_dir: Path, name: str) -> None:
        self._run_dir, self._name = run_dir, name

    def end(self, finished: bool = False) -> None:
        """Note the end of the attempt, and of the whole run if it is ``finished``."""
        end_attempt(self._run_dir, self._name, finished)


@contextlib.contextmanager
def attempt(run_dir: Path, group: WorkerGroup) -> Iterator[Attempt]:
    """Note that an attempt begins and ends; the end is not noted if a process of the group was killed.

    If the attempt before was killed, a line on stderr says so.
    """
    name, was_killed = group.run_on_first(lambda: begin_attempt(run_dir))
    if was_killed and group.is_first:
        say(f"{run_dir}: the attempt before was killed, most likely for lack of memory (execution.train_mem_mb)")
    begun = Attempt(run_dir, name)
    try:
        yield begun
    except BaseException as error:
        if not group.lost_peer(error):
            begun.end()
        raise
    if group.is_first:  # the others may be done while rank 0 still writes
        begun.end()


def with_room(name: str, job: Job, group: WorkerGroup) -> int:
    """Run a job and return its status; while a micro-batch does not fit, halve it and go on from the last checkpoint.

    A process of several ends instead with the status ``TOO_LARGE``, and the launcher starts all of them again.
    """
    while True:
        try:
            return job(group)
        except MicroBatchError as error:
            say(f"{name}: {error}")
            if group.size > 1:
                os._exit(TOO_LARGE)  # at once, since the others may never close their connections
        gc.collect()  # frees the trainer
        say(f"{name}: {HALVED}")
        group = replace(group, halvings=group.halvings + 1)
