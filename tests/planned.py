"""A study with its data and cells, for tests of what is below the plan."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from coupled_adam_bench.evaluation.stage import run_stage
from coupled_adam_bench.records.stored import measurement_of
from coupled_adam_bench.study.catalogue.stages import STAGES
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.cells import Cell, block_cells
from coupled_adam_bench.study.plan.plan import _plan
from coupled_adam_bench.study.settings import Study

DONE = Path("stage.done")


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

    def of(self, ids: Iterable[str]) -> list[Cell]:
        return [self.cells[cell_id] for cell_id in ids]

    def measure(self, stage: str, *ids: str, status: int = 0) -> None:
        """Run a stage in the working folder as its rule does; it must end with this status."""
        assert run_stage(STAGES[stage], self.of(ids), DONE) == status

    def record(self, stage: str, cell_id: str) -> dict[str, Any]:
        """The record of what a stage has measured."""
        return measurement_of(STAGES[stage], self.study, self.data_id).read(cell_id)


def values_of(rows: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
    """The values of the results of an evaluation by task and metric, each of which is there
    once."""
    values = {(row["task"], row["metric"]): row["value"] for row in rows}
    assert len(values) == len(rows)
    return values


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
