"""Trunks: the steps that cells of schedule ``wsd`` share before their decay, trained once.

A trunk is a run with a constant learning rate in a folder of its own, whose checkpoints at the branches stay. A cell
begins with the last of them before its decay (:meth:`Trainer.resume`): which ones there are changes what a cell costs,
and none of its numbers. A study with a larger D goes on from the end of the trunk.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from coupled_adam_bench.cells import Cell
from coupled_adam_bench.config import Execution
from coupled_adam_bench.files import write_json
from coupled_adam_bench.paths import branch_file
from coupled_adam_bench.training.checkpoint import cell_lock
from coupled_adam_bench.training.distributed import RESUME_ME, Group
from coupled_adam_bench.training.loop import Job, Run, in_turn
from coupled_adam_bench.training.trainer import Trainer


def train_trunk(part: Cell, execution: Execution, data_dir: Path, trunk_dir: Path, group: Group) -> int:
    """Train a trunk to the end of ``part``, a branch, going on from what is there; nothing if it is further already.

    Returns an exit status: 0, or 75 if it was stopped. Last it writes the branch's file. One that diverges ends with 0:
    so will its cells. Errors are those of :func:`~coupled_adam_bench.training.loop.train`.
    """
    with contextlib.ExitStack() as stack:
        group.from_first(lambda: stack.enter_context(cell_lock(trunk_dir)))
        trainer = Trainer(part, execution, data_dir, trunk_dir, group)
        trainer.resume()
        run = Run(trainer, trunk=True)
        status, bad_step = "completed", None
        if trainer.state.step < part.steps:
            if group.is_first:
                write_json(trunk_dir / "cell.json", part.to_json())
            status, bad_step = run.to_end()
        if status == "interrupted":
            return RESUME_ME
        if group.is_first:
            write_json(trunk_dir / branch_file(part.id, part.steps).name, run.record(status, bad_step))
    return 0


def train_trunks(parts: Sequence[Cell], execution: Execution, results: Path, device: str = "auto") -> int:
    """Train trunks one after the other below the folder ``results``, each to the end of its part.

    Returns an exit status: see :func:`~coupled_adam_bench.training.loop.in_turn`.
    """

    def job(part: Cell) -> Job:
        data_dir, trunk_dir = results / "data" / part.data_id, results / "trunks" / part.id
        return lambda group: train_trunk(part, execution, data_dir, trunk_dir, group)

    return in_turn({f"{part.id} to step {part.steps}": job(part) for part in parts}, execution, device)
