"""A study with its data and cells, for tests of what is below the plan."""

from dataclasses import dataclass
from functools import cached_property

from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell, block_cells
from coupled_adam_bench.study.plan.plan import _plan
from coupled_adam_bench.study.settings import Study


@dataclass(frozen=True)
class Planned:
    study: Study
    data_id: str

    @cached_property
    def cells(self) -> dict[str, Cell]:
        data = self.data_id.rpartition("-")[2]
        cells = [cell for block in self.study.grid for cell in block_cells(self.study, data, block)]
        return {cell.id: cell for cell in cells}

    def plan(self) -> Plan:
        return _plan(
            self.study.name, self.study.title, [(self.study, self.data_id.rpartition("-")[2])]
        )

    def of(self, ids: list[str]) -> list[Cell]:
        return [self.cells[cell_id] for cell_id in ids]


def studies(plan: Plan) -> list[Planned]:
    """The studies of a plan."""
    return [Planned(study, plan.data_id(study)) for study in plan.studies.values()]


def only(plan: Plan) -> Planned:
    """The study of a plan that has one."""
    (study,) = studies(plan)
    return study


def study_and_data(planned: Planned) -> tuple[Study, str]:
    """A study and the id of its data, the first arguments of stages."""
    return planned.study, planned.data_id
