"""The jobs of a study: which cells each has, and which jobs have work left."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coupled_adam_bench.evaluation.identity import check_tasks
from coupled_adam_bench.evaluation.stage import measurements
from coupled_adam_bench.store.files import write_changed
from coupled_adam_bench.store.runs import run_of
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.study import parse_study
from coupled_adam_bench.tools.costs import describe_plan
from coupled_adam_bench.tracking.copy import is_copied

LINES = 15
"""How much of a failed job's log is told."""


def planned(config: Mapping[str, Any], is_main_process: bool, without_text: bool) -> Plan:
    """Return the plan of a start; what is wrong with its study ends it, in the study's own words.

    The text of a plan ``without_text`` is not looked for. Tasks, which take seconds to find, are in
    the main process of Snakemake alone, and not again in each job's.
    """
    try:
        study = parse_study(config)
        if without_text:
            return Plan(study, "", {})
        plan = make_plan(study)
        if is_main_process:
            check_tasks(study)
        return plan
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


def is_trained(cell_id: str) -> bool:
    """Tell whether a cell has been trained to its end."""
    return run_of(cell_id).record.exists()


def measured(plan: Plan) -> Callable[[str], bool]:
    """Return what tells whether a cell has all evaluations of a study."""
    stages = list(measurements(plan.study).values())
    return lambda cell_id: all(stage.is_done(cell_id) for stage in stages)


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


def is_locked(study: Path) -> bool:
    """Tell whether another start works on a study: Snakemake refuses a second one, but only after
    it has read the Snakefile."""
    locks = Path(".snakemake/locks").glob("*.lock")
    return any(f"{study}/" in lock.read_text(encoding="utf-8") for lock in locks)


def begin(plan: Plan, file: Path) -> None:
    """Write the plan, which the jobs of a start read, and ``plan.txt``: what it takes."""
    plan.write(file)
    write_changed(file.with_name("plan.txt"), describe_plan(plan) + "\n")


def forget(study: Path, markers: list[Path]) -> None:
    """Delete what a start is to make again in the folder of a study.

    Snakemake makes no missing marker again for the sake of a whole report, so the manifest, one of
    the report's files, goes with the markers.
    """
    copied = study / "mlflow.json"
    old = [*markers, study / "manifest.json"] if markers else []
    if not is_copied(copied):
        old.append(copied)
    for file in old:
        file.unlink(missing_ok=True)


def tell_failed(logs: Path, since: float) -> None:
    """Print the ends of the logs of jobs that have failed since a time, as they say themselves."""
    for log in sorted(logs.glob("*.log")):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        has_failed = any(line.startswith(("error:", "Traceback")) for line in lines)
        if has_failed and log.stat().st_mtime > since:
            print(f"\n{log} ends so:", *lines[-LINES:], sep="\n  ", file=sys.stderr)
