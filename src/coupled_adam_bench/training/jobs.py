"""Jobs of training: a cell or a part of a trunk, trained or resumed in its folder, and several one after the other.

A trunk is the steps that cells of schedule ``wsd`` share before their decay: a run with a constant learning rate in a
folder of its own, which keeps its checkpoints at the branches. A cell starts from the last such checkpoint before its
decay (:meth:`Trainer.resume`). This changes the cost of a cell, but none of its numbers. A study with a larger D
continues from the end of the trunk.
"""

import contextlib
import gc
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.store.locks import FolderLock
from coupled_adam_bench.store.runs import begin_attempt, cell_damage, check_own, end_attempt, run_damage, write_cell
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import Execution
from coupled_adam_bench.training.checks import is_trained, say_kept
from coupled_adam_bench.training.distributed import HALVED, TOO_LARGE, StopVote, WorkerGroup, open_group
from coupled_adam_bench.training.loop import Outcome, Run
from coupled_adam_bench.training.stop_requests import RESUME_ME, stop_requests
from coupled_adam_bench.training.trainer import MicroBatchError, Trainer

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


def train(
    cell: Cell, execution: Execution, data_dir: Path, run_dir: Path, group: WorkerGroup, results: Path | None = None
) -> int:
    """Train a cell or resume its training, and return an exit status: 0, or 75 if it was stopped and can resume.

    A diverged cell returns 0, because divergence is a result. Training starts from the cell's trunk below the
    folder ``results`` if that has got further. If another process trains the cell, this waits for it. A cell whose run
    has ended and whose files are whole is kept. Raises ``ValueError`` for damaged data and ``CheckpointError`` when the
    disk is full.
    """
    with stop_requests() as stop, locked(run_dir, group, stop) as is_ours:
        if not is_ours:
            return RESUME_ME
        if group.run_on_first(lambda: _is_kept(cell, run_dir, data_dir)):
            return 0
        with (
            attempt(run_dir, group) as begun,
            contextlib.closing(Trainer(cell, execution, data_dir, run_dir, group)) as trainer,
        ):
            trainer.resume(results)
            run = Run(trainer, begun.end, stop)
            outcome = run.to_end()
            if outcome.status == "interrupted":
                return RESUME_ME
            run.report(outcome)
            begun.end(finished=True)
    return 0


def _is_kept(cell: Cell, run_dir: Path, data_dir: Path) -> bool:
    """Write ``cell.json`` if it is not whole, and tell whether the rest of the run is whole; print the outcome."""
    if (damage := cell_damage(run_dir)) is not None:
        if paths.RunFiles(run_dir).cell.exists():
            say(f"{damage}; written anew")
        write_cell(run_dir, cell.to_json())
    if is_trained(cell, run_dir, data_dir):
        paths.RunFiles(run_dir).attempt.unlink(missing_ok=True)  # left by a process that was killed after its last file
        say_kept(cell)
        return True
    if (problem := run_damage(run_dir, model=True)) is not None:
        say(f"{problem}; made anew from the checkpoints")
    return False


def train_cells(cells: Sequence[Cell], execution: Execution, results: Path, device: str = "auto") -> int:
    """Train cells one after the other below the folder ``results`` and return an exit status: see :func:`run_jobs`."""

    def job(cell: Cell) -> Job:
        data_dir, run_dir = paths.data_dir(cell.data_id, results), paths.run_dir(cell.id, results)
        return lambda group: train(cell, execution, data_dir, run_dir, group, results)

    return run_jobs({cell.id: job(cell) for cell in cells}, execution, device)


def train_trunk(branch: Cell, execution: Execution, data_dir: Path, trunk_dir: Path, group: WorkerGroup) -> int:
    """Train a trunk to the last step of ``branch``, unless it has got there before, and write the branch's file.

    Returns an exit status: 0, or 75 if it was stopped. A diverged trunk returns 0, since its cells will diverge too.
    Errors are those of :func:`train`.
    """
    with stop_requests() as stop, locked(trunk_dir, group, stop) as is_ours:
        if not is_ours:
            return RESUME_ME
        with (
            attempt(trunk_dir, group) as begun,
            contextlib.closing(Trainer(branch, execution, data_dir, trunk_dir, group)) as trainer,
        ):
            trainer.resume()
            run = Run(trainer, begun.end, stop, trunk=True)
            outcome = Outcome("completed", trainer.state.step)
            if trainer.state.step < branch.steps:
                if group.is_first:
                    write_cell(trunk_dir, branch.to_json())
                outcome = run.to_end()
            if outcome.status == "interrupted":
                return RESUME_ME
            if group.is_first:
                trainer.history.mend()
                write_sealed(trunk_dir / paths.branch_file(branch.id, branch.steps).name, run.record(outcome))
            begun.end(finished=True)
    return 0


def train_trunks(branches: Sequence[Cell], execution: Execution, results: Path, device: str = "auto") -> int:
    """Train trunks one after the other below the folder ``results``, each to the last step of its branch.

    Returns an exit status: see :func:`run_jobs`.
    """

    def job(branch: Cell) -> Job:
        data_dir, trunk_dir = paths.data_dir(branch.data_id, results), paths.trunk_dir(branch.id, results)
        return lambda group: train_trunk(branch, execution, data_dir, trunk_dir, group)

    jobs = {f"{branch.id} to step {branch.steps}": job(branch) for branch in branches}
    return run_jobs(jobs, execution, device)


def run_jobs(jobs: Mapping[str, Job], execution: Execution, device: str) -> int:
    """Run the jobs one after the other, each with the group of processes, and return the worst exit status.

    A job that crashes is reported, and the next one runs, unless several processes share the job: then all of them end.
    A request to stop ends the loop.
    """
    worst = 0
    with stop_requests() as stop, open_group(device, execution.stall_seconds) as group:
        for name, job in jobs.items():
            if group.sum(torch.tensor(float(bool(stop)), device=group.device)) > 0:  # in any process
                return RESUME_ME
            try:
                status = with_room(name, job, group)
            except Exception as error:
                lost = group.lost_peer(error)
                if not lost and not isinstance(error, (ValueError, OSError)):  # not an error that the user can correct
                    traceback.print_exc()
                reason = f"another of the {group.size} processes has ended; its own lines or the launcher's say why"
                say(f"error: {name}: {reason if lost else error}")
                if group.size > 1:
                    return 2
                worst = 2
                continue
            if status == RESUME_ME:
                return RESUME_ME
    return worst
