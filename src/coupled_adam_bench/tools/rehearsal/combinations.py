"""What the cells of a plan combine: model, kind of optimizer, recipe and processes."""

from dataclasses import dataclass

from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import CustomSettings, Execution, Optimizer
from coupled_adam_bench.study.config.optimizers import HeadSettings
from coupled_adam_bench.study.plan import Plan


@dataclass(frozen=True)
class Combination:
    """Cells that differ in nothing that fake tensors can see: one of them, and the number of all."""

    cell: Cell
    n_cells: int

    @property
    def execution(self) -> Execution:
        """How the cell's study trains."""
        return self.cell.study.execution

    @property
    def uses_ddp(self) -> bool:
        """Whether several processes each hold the whole model."""
        return self.execution.processes > 1 and self.execution.parallel == "ddp"

    @property
    def label(self) -> str:
        """Model, optimizer, processes and precision."""
        execution = self.execution
        processes = f"{execution.processes} x {execution.parallel}" if execution.processes > 1 else "1 process"
        optimizer = self.cell.optimizer
        kind = optimizer.key if isinstance(optimizer, CustomSettings) else ", ".join(_kind(optimizer))
        return f"{self.cell.model.name}, {kind}, {processes}, {self.cell.training.precision}"


def _kind(optimizer: Optimizer) -> list[str]:
    """Return an optimizer's name, and those of its settings that make other tensors, if they are given."""
    given = optimizer.model_dump()
    return [optimizer.name, *(field for field in ("amsgrad", *HeadSettings.later) if field in given)]


def combinations(plan: Plan) -> list[Combination]:
    """Return what a plan's cells combine: model, kind of optimizer, recipe, processes; numbers alone make no other."""
    cells: dict[str, list[Cell]] = {}
    for cell in plan.cells.values():
        execution, training = cell.study.execution, cell.training
        key = (
            cell.vocab_size,
            cell.model.model_dump(exclude={"name", "label", "learning_rate"}),
            cell.optimizer.model_dump() if isinstance(cell.optimizer, CustomSettings) else _kind(cell.optimizer),
            [training.seq_len, training.batch_sequences, training.precision, training.core_optimizer],
            [execution.gpus, execution.processes, execution.parallel, execution.micro_batch_sequences],
            execution.evaluation_batch_sequences,
        )
        cells.setdefault(repr(key), []).append(cell)
    return [Combination(alike[0], len(alike)) for alike in cells.values()]
