"""Jobs of training: a cell or a part of a trunk, trained or resumed in its folder, and several one
after the other.

A trunk is the steps that cells of schedule ``wsd`` share before their decay: a run with a constant
learning rate in a folder of its own, which keeps its checkpoints at the branches. A cell starts
from the last such checkpoint before its decay (:meth:`Trainer.resume`). This changes the cost of a
cell, but none of its numbers. A study with a larger D continues from the end of the trunk.
"""

import contextlib
import gc
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.locks import FolderLock
from coupled_adam_bench.store.runs import cell_damage, run_damage, write_cell
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import Execution
from coupled_adam_bench.training.checks import is_trained, say_kept
from coupled_adam_bench.training.distributed import (
    HALVED,
    TOO_LARGE,
    StopVote,
    WorkerGroup,
    open_group,
)
from coupled_adam_bench.training.loop import Run
from coupled_adam_bench.training.stop_requests import RESUME_ME, stop_requests
from coupled_adam_bench.training.trainer import MicroBatchError, Trainer

Job = Callable[[WorkerGroup], int]
_VOTE_SECONDS = 1.0


@contextlib.contextmanager
def locked(run_dir: Path, group: WorkerGroup, stop: Sequence[int]) -> Iterator[bool]:
    """Hold the lock of a run folder in the first process; wait while another job holds it.

    Yields false if a request to stop in any process has ended the wait.
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
        yield is_ours


def with_room(name: str, job: Job, group: WorkerGroup) -> int:
    """Run a job and return its status; while a micro-batch does not fit, halve it and go on from
    the last checkpoint.

    A process of several ends instead with the status ``TOO_LARGE``, and the launcher starts all of
    them again.
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


def train(
    cell: Cell,
    execution: Execution,
    data_dir: Path,
    run_dir: Path,
    group: WorkerGroup,
    results: Path | None = None,
    *,
    trunk: bool = False,
) -> int:
    """Train a cell or resume its training, and return an exit status: 0, or 75 if it was stopped
    and can resume.

    A diverged cell returns 0, because divergence is a result. Training starts from the cell's trunk
    below the folder ``results`` if that has got further. If another process trains the cell, this
    waits for it. A cell whose run has ended and whose files are whole is kept. A ``trunk`` is
    trained to the last step of a branch, unless it has got there before. Raises ``ValueError`` for
    damaged data and ``CheckpointError`` when the disk is full.
    """
    with stop_requests() as stop, locked(run_dir, group, stop) as is_ours:
        if not is_ours:
            return RESUME_ME
        if not trunk and group.run_on_first(lambda: _is_kept(cell, run_dir, data_dir)):
            return 0
        with contextlib.closing(Trainer(cell, execution, data_dir, run_dir, group)) as trainer:
            trainer.resume(results)
            if trunk and group.is_first and trainer.state.step < cell.steps:
                write_cell(run_dir, cell.to_json())
            run = Run(trainer, stop, trunk)
            outcome = run.to_end()
            if outcome.status == "interrupted":
                return RESUME_ME
            run.report(outcome)
    return 0


def _is_kept(cell: Cell, run_dir: Path, data_dir: Path) -> bool:
    """Write ``cell.json`` if it is not whole, and tell whether the rest of the run is whole; print
    the outcome."""
    if (damage := cell_damage(run_dir)) is not None:
        if paths.RunFiles(run_dir).cell.exists():
            say(f"{damage}; written anew")
        write_cell(run_dir, cell.to_json())
    if is_trained(cell, run_dir, data_dir):
        say_kept(cell)
        return True
    if (problem := run_damage(run_dir, model=True)) is not None:
        say(f"{problem}; made anew from the checkpoints")
    return False


def train_cells(
    cells: Sequence[Cell],
    execution: Execution,
    results: Path,
    device: str = "auto",
    *,
    trunk: bool = False,
) -> int:
    """Train cells, or a ``trunk`` to each of its branches, one after the other below the folder
    ``results``.

    Returns an exit status: see :func:`run_jobs`.
    """

    def job(cell: Cell) -> Job:
        data_dir = paths.data_dir(cell.data_id, results)
        if trunk:
            return lambda group: train(
                cell, execution, data_dir, paths.trunk_dir(cell.id, results), group, trunk=True
            )
        return lambda group: train(
            cell, execution, data_dir, paths.run_dir(cell.id, results), group, results
        )

    def name(cell: Cell) -> str:
        return f"{cell.id} to step {cell.steps}" if trunk else cell.id

    return run_jobs({name(cell): job(cell) for cell in cells}, device)


def run_jobs(jobs: Mapping[str, Job], device: str) -> int:
    """Run the jobs one after the other, each with the group of processes, and return the worst exit
    status.

    A job that crashes is reported, and the next one runs, unless several processes share the job:
    then all of them end. A request to stop ends the loop.
    """
    worst = 0
    with stop_requests() as stop, open_group(device) as group:
        for name, job in jobs.items():
            if group.sum(torch.tensor(float(bool(stop)), device=group.device)) > 0:
                # A request in any process stops all of them.
                return RESUME_ME
            try:
                status = with_room(name, job, group)
            except Exception as error:
                lost = group.lost_peer(error)
                if not lost and not isinstance(error, (ValueError, OSError)):
                    # The user cannot correct this error, so its place in the code is shown.
                    traceback.print_exc()
                reason = (
                    f"another of the {group.size} processes has ended; its own lines or the"
                    " launcher's say why"
                )
                say(f"error: {name}: {reason if lost else error}")
                if group.size > 1:
                    return 2
                worst = 2
                continue
            if status == RESUME_ME:
                return RESUME_ME
    return worst
