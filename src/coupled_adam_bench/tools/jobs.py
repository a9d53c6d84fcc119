"""The jobs of a study: which cells each has, and which jobs have work left."""

from collections.abc import Callable, Iterable
from pathlib import Path

from coupled_adam_bench.evaluation.stage import measurements
from coupled_adam_bench.store.files import write_changed
from coupled_adam_bench.store.runs import run_of
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.tools.costs import describe_plan


def is_trained(cell_id: str) -> bool:
    """Tell whether a cell has been trained to its end."""
    return run_of(cell_id).record.exists()


def measured(plan: Plan) -> Callable[[str], bool]:
    """Return what tells whether a cell has all evaluations of a study."""
    stages = list(measurements(plan.study).values())
    return lambda cell_id: all(stage.is_there(cell_id) for stage in stages)


def batches(
    plan: Plan, size: int, is_done: Callable[[str], bool], folder: Path, is_dry: bool
) -> tuple[dict[str, list[str]], dict[str, Path]]:
    """Return the cells of each job, and in ``folder`` the marker of each job that has work left.

    In a dry run, which deletes no old marker, jobs have names that have never had one.
    """
    ids, end = list(plan.cells), "-planned" if is_dry else ""
    starts = range(0, len(ids), size)
    cells = {f"batch-{start // size:03d}{end}": ids[start : start + size] for start in starts}
    left = [job for job, own in cells.items() if not all(map(is_done, own))]
    return cells, {job: folder / f"{job}.done" for job in left}


def begin(plan: Plan, file: Path, old: Iterable[Path]) -> None:
    """Write the plan for a start's jobs, and what it takes; delete what is to be made again."""
    plan.write(file)
    write_changed(file.with_name("plan.txt"), describe_plan(plan) + "\n")
    for each in old:
        each.unlink(missing_ok=True)
