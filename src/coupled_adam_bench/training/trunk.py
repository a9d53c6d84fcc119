"""Trunks: the steps that cells of schedule ``wsd`` share before their decay, trained once.

A trunk is a run with a constant learning rate in a folder of its own, which keeps its checkpoints at the branches. A
cell starts from the last such checkpoint before its decay (:meth:`Trainer.resume`). This changes the cost of a cell,
but none of its numbers. A study with a larger D continues from the end of the trunk.
"""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.store.runs import write_cell
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import Execution
from coupled_adam_bench.training.distributed import WorkerGroup
from coupled_adam_bench.training.loop import Outcome, Run, run_jobs
from coupled_adam_bench.training.session import Job, attempt, locked
from coupled_adam_bench.training.stop_requests import RESUME_ME, stop_requests
from coupled_adam_bench.training.trainer import Trainer


def train_trunk(branch: Cell, execution: Execution, data_dir: Path, trunk_dir: Path, group: WorkerGroup) -> int:
    """Train a trunk to the last step of ``branch``, unless it has got there before, and write the branch's file.

    Returns an exit status: 0, or 75 if it was stopped. A diverged trunk returns 0, since its cells will diverge too.
    Errors are those of :func:`~coupled_adam_bench.training.loop.train`.
    """
    with stop_requests() as stop, locked(trunk_dir, group, stop) as is_ours:
        if not is_ours:
            return RESUME_ME
        with (
            attempt(trunk_dir, group) as begun,
            closing(Trainer(branch, execution, data_dir, trunk_dir, group)) as trainer,
        ):
            trainer.resume()
            run = Run(trainer, begun, stop, trunk=True)
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

    Returns an exit status: see :func:`~coupled_adam_bench.training.loop.run_jobs`.
    """

    def job(branch: Cell) -> Job:
        data_dir, trunk_dir = paths.data_dir(branch.data_id, results), paths.trunk_dir(branch.id, results)
        return lambda group: train_trunk(branch, execution, data_dir, trunk_dir, group)

    jobs = {f"{branch.id} to step {branch.steps}": job(branch) for branch in branches}
    return run_jobs(jobs, execution, device)
