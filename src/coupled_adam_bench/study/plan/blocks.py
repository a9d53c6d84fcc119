"""A block of a study's grid as a plan has it: with the cells that it expands to."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.plan.tuning import Tuning
from coupled_adam_bench.study.settings import GridBlock, Study


@dataclass(frozen=True)
class PlannedBlock:
    """A block of a study's grid and its cells, in the order of the grid."""

    study: Study
    place: str
    """The field of the study that holds the block, such as ``grid.0``."""
    block: GridBlock
    cells: tuple[Cell, ...]
    tunings: Mapping[str, Tuning] = field(default_factory=dict)
    """The tunings for which cells of the block wait, by id."""
