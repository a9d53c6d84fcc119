"""What a process of two does in tests of training; children import it by its name."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.training.loop import train
from coupled_adam_bench.training.processes import Group


@dataclass(frozen=True)
class TrainAll:
    """Trains all cells in each of several folders, with the settings of ``execution`` of each."""

    plan: Plan
    changes: dict[Path, dict[str, Any]]

    def __call__(self, group: Group, stop: list[int]) -> int:
        for folder, changes in self.changes.items():
            os.chdir(folder)
            execution = self.plan.study.execution.model_copy(update=changes)
            for cell in self.plan.cells.values():
                assert train(cell, execution, group, stop) == 0
        return 0
