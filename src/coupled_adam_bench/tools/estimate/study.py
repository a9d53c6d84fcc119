"""What a whole study takes: time, memory, disk and cost, and what is done."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path

from coupled_adam_bench.machine.device import n_processors
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.runs import KEEP_CHECKPOINTS
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.settings import Budget
from coupled_adam_bench.tools.estimate.cell import (
    BranchEstimate,
    CellEstimate,
    DataSize,
    EstimateRow,
    JobEstimate,
    data_size,
    estimate_cell,
    own_parts,
    trunk_part,
)
from coupled_adam_bench.tools.estimate.rental import Rental, rentals
from coupled_adam_bench.tools.estimate.speed import read_speeds
from coupled_adam_bench.training.memory import checkpoint_bytes

_JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Estimate:
    """All that ``plan`` says about a study."""

    plan: Plan
    cells: tuple[CellEstimate, ...]
    trunks: dict[str, tuple[BranchEstimate, ...]]
    """The branches of each trunk by its id, in the order of their steps."""
    data: tuple[DataSize, ...]

    @property
    def budget(self) -> Budget:
        """What time and cost are computed with."""
        return self.plan.budget

    @property
    def on_gpus(self) -> bool:
        """Whether any cell is trained on GPUs."""
        return any(estimate.cell.study.execution.gpus for estimate in self.cells)

    def rows(self) -> list[EstimateRow]:
        """Return the cells by study, model and tokens, those that tune apart, in the study's
        order."""
        groups: dict[tuple[str, ...], list[CellEstimate]] = {}
        for estimate in self.cells:
            cell = estimate.cell
            key = (cell.study.name, cell.model.name, str(cell.n_tokens), str(estimate.tunes))
            groups.setdefault(key, []).append(estimate)
        return [EstimateRow(tuple(group)) for group in groups.values()]

    @cached_property
    def rentals(self) -> list[Rental]:
        """What is left takes on each kind of GPU that can be rented; nothing for a study without
        GPUs."""
        if not self.on_gpus:
            return []
        left = [(each.part, each.hours, each.spread) for each in self._left]
        return rentals([estimate.cell for estimate in self.cells], left, self.budget)

    @property
    def _branches(self) -> list[BranchEstimate]:
        return [branch for branches in self.trunks.values() for branch in branches]

    @property
    def _all(self) -> list[JobEstimate]:
        return [*self._branches, *self.cells]

    @property
    def _left(self) -> list[JobEstimate]:
        """What is still to train."""
        branches = [branch for branch in self._branches if not branch.is_trained]
        cells = [estimate for estimate in self.cells if estimate.run is None]
        return [*branches, *cells]

    @property
    def n_tokens(self) -> int:
        """Tokens that are trained, what cells share once."""
        return sum(each.part.n_tokens for each in self._all)

    @property
    def flops(self) -> int:
        """Model FLOPs of these tokens."""
        return sum(each.part.flops for each in self._all)

    @property
    def hours_range(self) -> tuple[float, float]:
        """Between which hours of all cells may lie by their estimates, those that are done too."""
        return _total(self._all)

    @property
    def hours_left_range(self) -> tuple[float, float]:
        """Between which hours may lie that all GPUs, or processes on a CPU, still train
        together."""
        return _total(self._left)

    @property
    def hours_taken(self) -> float:
        """Hours that ended runs took."""
        return sum(estimate.hours_taken for estimate in self.cells)

    @property
    def kwh_taken(self) -> float | None:
        """Energy in kWh that the GPUs of ended runs used, None if it is not known of all of
        them."""
        total = 0.0
        for cell in self.cells:
            if cell.run is not None:
                if cell.run.joules is None:
                    return None
                total += cell.run.joules
        return total / _JOULES_PER_KWH

    @property
    def slots(self) -> int:
        """GPUs that work at the same time, at least those of one cell; without GPUs, processors of
        this machine."""
        if self.on_gpus:
            return max(
                self.budget.gpus, *(estimate.cell.study.execution.gpus for estimate in self.cells)
            )
        return max(
            n_processors(),
            *(estimate.cell.study.execution.training_threads for estimate in self.cells),
        )

    def _seconds_left(self, estimate: CellEstimate) -> float:
        """Return the least time until a cell is trained: of its candidates or its trunk before it,
        and of its own job."""
        if estimate.run is not None:
            return 0.0
        cell, before = estimate.cell, 0.0
        if not cell.is_chosen and cell.tuning is not None:
            tried = {candidate.id for candidate in self.plan.tunings[cell.tuning].cells}
            before = max(
                self._seconds_left(other) for other in self.cells if other.cell.id in tried
            )
        for trunk in self.plan.trunks.values():
            if prefix := trunk.prefixes.get(cell.id):
                branches = self.trunks[prefix.id]
                before = sum(
                    each.spread.low * each.seconds
                    for each in branches
                    if each.step <= prefix.steps and not each.is_trained
                )
        return before + estimate.spread.low * estimate.seconds

    @cached_property
    def longest(self) -> tuple[str, float]:
        """The cell that takes longest, with the least time until it is trained, that no number of
        machines shortens."""
        return max(
            ((each.cell.id, self._seconds_left(each)) for each in self.cells), key=itemgetter(1)
        )

    @property
    def wall_seconds(self) -> float:
        """The shortest time until the study is trained on ``slots``, without evaluations."""
        per_process = (
            1
            if self.on_gpus
            else max(each.cell.study.execution.train_threads for each in self.cells)
        )
        hours, _ = self.hours_left_range
        return max(self.longest[1], 3600 * hours * per_process / self.slots)

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of the checkpoints that stay: the newest of each cell and of each trunk, and the
        trunks' branches."""
        trunks = sum(checkpoint_bytes(branch.part) for branch in self._branches)
        return trunks + sum(KEEP_CHECKPOINTS * estimate.checkpoint_bytes for estimate in self.cells)

    @property
    def model_bytes(self) -> int:
        """Bytes of the exported models."""
        return sum(estimate.model_bytes for estimate in self.cells)


def _total(estimates: Sequence[JobEstimate]) -> tuple[float, float]:
    """Return between which hours the sum of several estimates may lie: all of them are off in the
    same direction at the worst."""
    low = sum(each.hours_range[0] for each in estimates)
    high = sum(each.hours_range[1] for each in estimates)
    return low, high


def estimate_study(plan: Plan, results: Path = paths.RESULTS) -> Estimate:
    """Return the estimate of a plan, with what is done according to the folders below
    ``results``."""
    speeds = read_speeds(plan.trained.values(), results / paths.RUNS.name)
    parts = own_parts(plan)
    trunks = {}
    for name, trunk in plan.trunks.items():
        branches = []
        # A job takes a trunk from one branch to the next, so each has a time of its own.
        for step in trunk.branches:
            part = trunk_part(trunk, step)
            speed = speeds.of(part, part.study.execution)
            seconds = part.n_tokens / speed.tokens_per_second
            is_trained = paths.branch_file(name, step, results).is_file()
            branches.append(BranchEstimate(part, seconds, speed.spread, step, is_trained))
        trunks[name] = tuple(branches)
    sizes: dict[str, DataSize] = {}
    for study in plan.studies.values():
        data_id = plan.data_id(study)
        sizes.setdefault(data_id, data_size(study, data_id, paths.data_dir(data_id, results)))
    cells = tuple(
        estimate_cell(cell, parts[name], speeds, name in plan.tuning_cells)
        for name, cell in plan.trained.items()
    )
    return Estimate(plan, cells, trunks, tuple(sizes.values()))
