"""What a whole study takes: time, memory, disk and cost, what is done, and the jobs on the way to its end."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from coupled_adam_bench.machine.device import n_processors
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.runs import KEEP_CHECKPOINTS
from coupled_adam_bench.study.cells import Cell
from coupled_adam_bench.study.config import Budget, Downstream
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.presets import TASK_DOCUMENTS
from coupled_adam_bench.tools.estimate.cell import (
    BranchEstimate,
    CellEstimate,
    DataSize,
    EstimateRow,
    data_size,
    estimate_cell,
    own_parts,
    trunk_part,
)
from coupled_adam_bench.tools.estimate.rental import Rental, rentals
from coupled_adam_bench.tools.estimate.schedule import Job, critical_path, wall_seconds
from coupled_adam_bench.tools.estimate.speed import START_SECONDS, read_speeds
from coupled_adam_bench.training.memory import checkpoint_bytes

# The following are assumptions. A thread tokenizes so many tokens in a second. A document of a downstream task has so
# many tokens, which are evaluated as fast as others are trained: a third of the work, but in float32, in small batches.
_TOKENIZED_PER_THREAD = 500_000
_TOKENS_PER_DOCUMENT = 400
_CPU_START_SECONDS = 10
_REPORT_SECONDS = 60
_JOULES_PER_KWH = 3.6e6


def evaluated_tokens(downstream: Downstream) -> int:
    """Return about how many tokens the downstream tasks have, 0 for those of the generated language.

    A task that is not the paper's is taken to be as large as the mean of the paper's.
    """
    if downstream.tasks == "synthetic":
        return 0
    usual = sum(TASK_DOCUMENTS.values()) // len(TASK_DOCUMENTS)
    documents = (TASK_DOCUMENTS.get(task, usual) for task in downstream.tasks)
    limit = downstream.limit
    return _TOKENS_PER_DOCUMENT * sum(n if limit is None else min(n, limit) for n in documents)


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
        """Return the cells by study, model and tokens, those that tune apart, in the study's order."""
        groups: dict[tuple[str, ...], list[CellEstimate]] = {}
        for estimate in self.cells:
            cell = estimate.cell
            key = (cell.study.name, cell.model.name, str(cell.n_tokens), str(estimate.tunes))
            groups.setdefault(key, []).append(estimate)
        return [EstimateRow(tuple(group)) for group in groups.values()]

    @cached_property
    def rentals(self) -> list[Rental]:
        """What is left takes on each kind of GPU that can be rented; nothing for a study without GPUs."""
        if not self.on_gpus:
            return []
        left = [(branch.part, branch.hours) for branch in self._branches if not branch.is_trained]
        left += [(estimate.part, estimate.hours) for estimate in self.cells if estimate.run is None]
        return rentals([estimate.cell for estimate in self.cells], left, self.budget)

    @property
    def _branches(self) -> list[BranchEstimate]:
        return [branch for branches in self.trunks.values() for branch in branches]

    @property
    def n_tokens(self) -> int:
        """Tokens that are trained, what cells share once."""
        return sum(e.part.n_tokens for e in self.cells) + sum(branch.part.n_tokens for branch in self._branches)

    @property
    def flops(self) -> int:
        """Model FLOPs of these tokens."""
        return sum(e.part.flops for e in self.cells) + sum(branch.part.flops for branch in self._branches)

    @property
    def hours_left(self) -> float:
        """Hours that all GPUs, or processes on a CPU, still train together."""
        trunks = sum(branch.hours for branch in self._branches if not branch.is_trained)
        return trunks + sum(estimate.hours for estimate in self.cells if estimate.run is None)

    @property
    def hours(self) -> float:
        """Hours of all cells by their estimates, those that are done too."""
        trunks = sum(branch.hours for branch in self._branches)
        return trunks + sum(estimate.hours for estimate in self.cells)

    @property
    def hours_taken(self) -> float:
        """Hours that ended runs took."""
        return sum(estimate.hours_taken for estimate in self.cells)

    @property
    def kwh_taken(self) -> float | None:
        """Energy in kWh that the GPUs of ended runs used, None if it is not known of all of them."""
        total = 0.0
        for cell in self.cells:
            if cell.run is not None:
                if cell.run.joules is None:
                    return None
                total += cell.run.joules
        return total / _JOULES_PER_KWH

    def cost(self, hours: float) -> float | None:
        """Return the price of GPU hours, None without a price or without GPUs."""
        price = self.budget.price_per_gpu_hour
        return None if price is None or not self.on_gpus else price * hours

    @property
    def slots(self) -> int:
        """GPUs that work at the same time, at least those of one cell; without GPUs, processors of this machine."""
        if self.on_gpus:
            return max(self.budget.gpus, *(estimate.cell.study.execution.gpus for estimate in self.cells))
        return max(n_processors(), *(estimate.cell.study.execution.training_threads for estimate in self.cells))

    @cached_property
    def jobs(self) -> list[Job]:
        """The jobs that are still to do, each behind those that it comes after."""
        jobs: list[Job] = []
        for study in self.plan.studies.values():
            data = next(size for size in self.data if size.data_id == self.plan.data_id(study))
            name = f"prepare {data.data_id}"
            if not data.is_prepared and name not in {job.name for job in jobs}:
                threads = study.execution.data_threads
                seconds = (data.n_tokens or 0) / (_TOKENIZED_PER_THREAD * threads)
                jobs.append(Job(name, 0 if self.on_gpus else min(threads, self.slots), seconds))
        for trunk, branches in self.trunks.items():
            before = self._data_job(branches[0].part, jobs)
            for branch in branches:
                if not branch.is_trained:
                    name = f"train {trunk} to step {branch.step}"
                    job = self._training_job(name, branch.part, branch.seconds, before)
                    jobs.append(job)
                    before = (job.name,)
        left = {job.name for job in jobs}
        for estimate in sorted(self.cells, key=lambda each: not each.tunes):  # a choice comes before its cells
            if estimate.run is not None:
                continue
            cell = estimate.cell
            branches_of = {name: trunk for trunk in self.plan.trunks.values() for name in trunk.prefixes}
            before = self._data_job(cell, jobs)
            if cell.id in branches_of:
                prefix = branches_of[cell.id].prefixes[cell.id]
                name = f"train {prefix.id} to step {prefix.steps}"
                before = (name,) if name in left else before
            if not cell.is_chosen and cell.tuning is not None:
                tried = [f"train {other.id}" for other in self.plan.tunings[cell.tuning].cells]
                before = tuple(name for name in tried if any(job.name == name for job in jobs)) or before
            job = self._training_job(f"train {cell.id}", estimate.part, estimate.seconds, before)
            jobs += [job] if estimate.tunes else [job, self._evaluation_job(estimate, job)]
        evaluations = tuple(job.name for job in jobs if job.name.startswith("evaluate "))
        return [*jobs, Job("report", 0, _REPORT_SECONDS, evaluations)] if evaluations else jobs

    def _data_job(self, cell: Cell, jobs: Iterable[Job]) -> tuple[str, ...]:
        name = f"prepare {cell.data_id}"
        return (name,) if any(job.name == name for job in jobs) else ()

    def _slots_of(self, cell: Cell) -> int:
        execution = cell.study.execution
        return execution.gpus if self.on_gpus else execution.training_threads

    def _training_job(self, name: str, part: Cell, seconds: float, after: tuple[str, ...]) -> Job:
        return Job(name, self._slots_of(part), seconds + self._start(part), after)

    def _start(self, cell: Cell) -> float:
        execution = cell.study.execution
        return START_SECONDS if execution.gpus else _CPU_START_SECONDS / execution.train_cells_per_job

    def _evaluation_job(self, estimate: CellEstimate, after: Job) -> Job:
        cell, execution = estimate.cell, estimate.cell.study.execution
        tokens = evaluated_tokens(cell.study.evaluation.downstream)
        speed = estimate.part.n_tokens / estimate.seconds / execution.processes
        start = START_SECONDS if execution.gpus else _CPU_START_SECONDS / execution.evaluation_cells_per_job
        # Snakemake gives a job no more threads than there are, as on a login node.
        slots = min(execution.gpus, 1) if self.on_gpus else min(execution.evaluation_threads, self.slots)
        return Job(f"evaluate {cell.id}", slots, start + tokens / speed, (after.name,))

    @cached_property
    def wall_seconds(self) -> float:
        """Time until the study is done on ``slots``."""
        return wall_seconds(self.jobs, self.slots)

    @cached_property
    def critical_path(self) -> list[Job]:
        """The longest chain of jobs: the time that no number of machines shortens."""
        return critical_path(self.jobs)

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of the checkpoints that stay: the newest of each cell and of each trunk, and the trunks' branches."""
        trunks = sum(checkpoint_bytes(branch.part) for branch in self._branches)
        return trunks + sum(KEEP_CHECKPOINTS * estimate.checkpoint_bytes for estimate in self.cells)

    @property
    def model_bytes(self) -> int:
        """Bytes of the exported models."""
        return sum(estimate.model_bytes for estimate in self.cells)

    def to_json(self) -> dict[str, Any]:
        """Return everything as a JSON value; times are in seconds, memory and disk in bytes."""
        bins = [size.bytes for size in self.data]
        return {
            "study": self.plan.name,
            "budget": self.budget.model_dump(),
            "n_cells": len(self.cells),
            "n_done": sum(estimate.run is not None for estimate in self.cells),
            "n_tokens": self.n_tokens,
            "flops": self.flops,
            "processor": "GPU" if self.on_gpus else "CPU process",
            "processor_hours": self.hours,
            "processor_hours_taken": self.hours_taken,
            "kwh_taken": self.kwh_taken,
            "processor_hours_left": self.hours_left,
            "cost": self.cost(self.hours),
            "cost_left": self.cost(self.hours_left),
            "wall": {"at_once": self.slots, "seconds": self.wall_seconds},
            "rented": [{**asdict(rental), "cost": rental.cost} for rental in self.rentals],
            "critical_path": [{"job": job.name, "seconds": job.seconds} for job in self.critical_path],
            "disk": {
                "data": [{**asdict(size), "preparing_bytes": size.preparing_bytes} for size in self.data],
                "bins": None if None in bins else sum(size for size in bins if size),
                "checkpoints": self.checkpoint_bytes,
                "models": self.model_bytes,
            },
            "cells": [estimate.to_json() for estimate in self.cells],
        }


def estimate_study(plan: Plan, results: Path = paths.RESULTS) -> Estimate:
    """Return the estimate of a plan, with what is done according to the folders below ``results``."""
    speeds = read_speeds(plan.trained.values(), results / paths.RUNS.name)
    parts = own_parts(plan)
    trunks = {}
    for name, trunk in plan.trunks.items():
        branches = []
        for step in trunk.branches:
            part = trunk_part(trunk, step)
            speed, _ = speeds.tokens_per_second(part, part.study.execution)
            is_trained = paths.branch_file(name, step, results).is_file()
            branches.append(BranchEstimate(step, part, part.n_tokens / speed, is_trained))
        trunks[name] = tuple(branches)
    sizes: dict[str, DataSize] = {}
    for study in plan.studies.values():
        data_id = plan.data_id(study)
        sizes.setdefault(data_id, data_size(study, data_id, paths.data_dir(data_id, results)))
    cells = tuple(
        estimate_cell(cell, parts[name], speeds, name in plan.tuning_cells) for name, cell in plan.trained.items()
    )
    return Estimate(plan, cells, trunks, tuple(sizes.values()))
