"""What a run of the workflow is going to train, for the logger that shows it."""

from collections import Counter
from collections.abc import Callable, Mapping

from coupled_adam_bench.cli.jobs import Jobs
from coupled_adam_bench.cli.status import Kind, Part, Workflow
from coupled_adam_bench.store import paths
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.tools.estimate.cell import trunk_part
from coupled_adam_bench.tracking.described import run_name


def trained_parts(jobs: Jobs) -> Callable[[str, Mapping[str, str]], list[Part]]:
    """Return the function that says what a job trains, given its rule and its wildcards; nothing
    for other jobs."""

    def of_trunk(trunk: str, end: int) -> Part:
        part = trunk_part(jobs.plan.trunks[trunk], end)
        return Part(
            f"{trunk} to step {end}",
            paths.RunFiles(paths.trunk_dir(trunk)).history,
            paths.branch_file(trunk, end),
            end - part.steps,
            end,
            part.flops,
            "trunk",
        )

    def of_cell(name: str, cell: Cell) -> Part:
        own, files = jobs.own_parts[name], paths.RunFiles(paths.run_dir(cell.id))
        kind: Kind = "cell" if name in jobs.plan.cells else "candidate"
        begin = cell.steps - own.steps
        return Part(run_name(cell), files.history, files.record, begin, cell.steps, own.flops, kind)

    def of_job(rule: str, wildcards: Mapping[str, str]) -> list[Part]:
        if rule == "train_trunk":
            return [of_trunk(wildcards["trunk"], int(wildcards["step"]))]
        if rule != "train_cells":
            return []
        # The names of jobs stay; which cells they train is known once a tuning has chosen.
        cells = jobs.chosen().by_job_name
        return [of_cell(name, cells[name]) for name in jobs.training[wildcards["job"]]]

    return of_job


def planned_work(
    jobs: Jobs, planned: list[tuple[str, Mapping[str, str]]], full_log: str
) -> Workflow:
    """Return what this run is going to do, for the logger `study`, given rule and wildcards of each
    planned job."""
    parts_of = trained_parts(jobs)
    planned_parts = [part for rule, wildcards in planned for part in parts_of(rule, wildcards)]
    # A job of several cells may find some of them trained.
    finished = {part.record for part in planned_parts if part.record.exists()}

    def left_of(rule: str, wildcards: Mapping[str, str]) -> list[Part]:
        return [part for part in parts_of(rule, wildcards) if part.record not in finished]

    now: dict[Kind, Mapping[str, Cell]] = {
        "cell": jobs.chosen().cells,
        "candidate": jobs.plan.tuning_cells,
    }
    total: Counter[Kind] = Counter()
    trained: Counter[Kind] = Counter()
    for kind, cells in now.items():
        records = {paths.RunFiles(paths.run_dir(cell.id)).record for cell in cells.values()}
        total[kind] = len(cells)
        trained[kind] = sum(record.exists() for record in records)
    return Workflow(
        study=jobs.plan.name,
        total=total,
        trained=trained,
        n_jobs=len(planned),
        flops=sum(part.flops for part in planned_parts if part.record not in finished),
        logs=jobs.study_dir / "logs",
        full_log=full_log,
        parts=left_of,
    )
