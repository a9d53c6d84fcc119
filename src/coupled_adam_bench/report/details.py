"""What evaluations keep of single cells beside their numbers, for figures of curves."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from coupled_adam_bench.store.stored import measured_cells
from coupled_adam_bench.study.catalog.stages import STAGES
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.plan import Plan


def stored_details(
    plan: Plan, runs: Path, cells: Collection[Cell], stage: str, field: str
) -> Iterator[tuple[Cell, Any]]:
    """Yield some cells of a plan with a field of their evaluation by a stage.

    A cell that is not measured, or has diverged, is left out: the report's list of runs says why.
    """
    wanted = {cell.id for cell in cells}
    for cell, measurements in measured_cells(plan, runs):
        for measurement in measurements:
            if measurement.stage is STAGES[stage] and cell.id in wanted and measurement.is_there(cell.id):
                record = measurement.read(cell.id)
                if field in record:
                    yield cell, record[field]
