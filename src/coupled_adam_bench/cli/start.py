"""What a start of the workflow does before jobs are planned, and before the first of them
begins."""

import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from coupled_adam_bench.cli.guard import outdated_report, remove_stale_locks, set_aside_damage
from coupled_adam_bench.cli.jobs import Jobs
from coupled_adam_bench.cli.status import Kind, Part, Workflow
from coupled_adam_bench.evaluation.settings import described_sets
from coupled_adam_bench.machine.device import check_threads, lacks_bf16
from coupled_adam_bench.records.stated import stated_measures
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import read_sealed, seal, write_sealed
from coupled_adam_bench.store.locks import LOCK, FolderLock
from coupled_adam_bench.store.markup import latex_escape, letters_by_need
from coupled_adam_bench.store.paths import IMPORT_SUMMARY, imported_elsewhere, not_imported
from coupled_adam_bench.study.catalogue.stages import STAGES
from coupled_adam_bench.study.plan import PLAN_SHA256, Plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.plan.plug_ins import entries
from coupled_adam_bench.study.plan.preregistration_record import note_stated
from coupled_adam_bench.tools.estimate.cell import trunk_part
from coupled_adam_bench.tools.estimate.study import estimate_study
from coupled_adam_bench.tools.estimate.text import totals
from coupled_adam_bench.tracking.described import run_name
from coupled_adam_bench.tracking.place import tracking_uri
from coupled_adam_bench.training.checks import custom_optimizers
from embedding_geometry.table import align

TRAINING_RULES = {"train_cells", "train_trunk"}


def mend(jobs: Jobs, made_for: str, left_by: str) -> Iterator[str]:
    """Set aside the files that differ from what was written, and remove the locks of a killed run;
    yield sentences."""
    yield from set_aside_damage(jobs)
    yield from outdated_report(jobs.study_dir, made_for)
    if not_imported(jobs.study_dir) or imported_elsewhere(jobs.study_dir):
        (jobs.study_dir / IMPORT_SUMMARY).unlink()
    if said := remove_stale_locks(Path(".snakemake"), jobs.study_dir, left_by):
        yield said
    plan_file = paths.plan_file(jobs.plan.name)
    try:
        read_sealed(plan_file)
    except ValueError:
        # The file is missing or damaged. It is written here too, since perhaps no job will run.
        write_sealed(plan_file, jobs.plan.to_json())


def lock_study(study_dir: Path, wait: bool) -> list[FolderLock]:
    """Return a list with the lock of the study; it is empty for a run that does not wait and cannot
    have the lock.

    Another run has it, or the results may only be read: a dry run changes nothing, and shows them
    as they are.
    """
    try:
        lock = FolderLock(study_dir)
        is_ours = lock.acquire(math.inf if wait else 0)
        return [lock] if is_ours else []
    except OSError as error:
        if not wait:
            return []
        raise ValueError(
            f"{error}: the results must be writable to run a study; `snakemake -n` only reads"
        ) from None


def leave_nothing(study_dir: Path) -> None:
    """Remove the folder of a study again if nothing but its plan and lock are there.

    A process that holds the lock of the study does this at its end, if no job has begun: a start
    that failed, or one that only shows something, such as ``--lint``.
    """
    own = {LOCK, paths.plan_file(study_dir.name).name}
    with suppress(OSError):  # it is gone, or other studies have theirs beside it
        if {path.name for path in study_dir.iterdir()} <= own:
            for name in own:
                (study_dir / name).unlink(missing_ok=True)
            study_dir.rmdir()
            study_dir.parent.rmdir()


def plan_in_short(plan: Plan) -> str:
    """Return what a study is and takes in about ten lines, for a dry run."""
    models = dict.fromkeys(cell.model.name for cell in plan.cells.values())
    optimizers = dict.fromkeys(cell.optimizer.key for cell in plan.cells.values())
    rows = [("models", ", ".join(models)), ("optimizers", ", ".join(optimizers))]
    rows += totals(estimate_study(plan))
    return "\n".join([f"{plan.name}: {plan.title or 'no title'}", *align(rows, n_left=2)])


def word_lists(plan: Plan, planned: Collection[str]) -> Iterator[str]:
    """Yield what is read of the word lists that the planned jobs, or those after them, measure
    with."""
    if {"embeddings", *TRAINING_RULES} & {*planned}:
        lists = [said for study in plan.studies.values() for said in described_sets(study)]
        yield from (f"word list {said}" for said in dict.fromkeys(lists))


def not_needed_now(planned: Collection[str], missing: Mapping[str, str]) -> Iterator[str]:
    """Yield what a study will miss after the jobs of the ``planned`` rules, which do without it.

    What they need themselves stops the start (:func:`check_start`). Jobs that need nothing of the
    kind, such as those that download it, are not told of it.
    """
    if {"plan", "rehearse", *TRAINING_RULES} & {*planned}:
        yield from missing.values()


def check_start(
    jobs: Jobs, planned: Collection[str], is_local: bool, missing: Mapping[str, str]
) -> None:
    """Raise ``ValueError`` for what the jobs of the ``planned`` rules would find missing or wrong.

    ``missing`` is what the study needs and does not find. A machine that submits to a cluster says
    nothing of its nodes.
    """
    training = TRAINING_RULES & {*planned}
    evaluation = STAGES.keys() & {*planned}
    for kind, is_needed in (
        ("evaluate", evaluation or "try_tasks" in planned),
        ("train", training),
    ):
        if kind in missing and is_needed:
            raise ValueError(missing[kind])
    # What else a job would find wrong depends on where it runs.
    if not is_local and not re.fullmatch(r"[\w@%+=:,./-]+", sys.executable):
        raise ValueError(
            f"{sys.executable}: no job of a cluster could start this Python, since Snakemake does"
            " not quote its path there; make the environment in a folder whose path has no spaces,"
            " quotes or other characters that mean something to a shell"
        )
    executions = [study.execution for study in jobs.plan.studies.values()]
    if is_local and training:
        for threads in {execution.training_threads for execution in executions}:
            check_threads("execution.train_threads x train_processes", threads)
    if is_local and evaluation:
        for threads in {execution.evaluation_threads for execution in executions}:
            check_threads("execution.evaluation_threads", threads)
    if "track" in planned:
        tracking_uri()


_PRINTED = ("title", "label", "symbol")
"""The settings that tables print as they are."""


def _printed(settings: Any) -> Iterator[str]:
    """Yield what the tables of a study print of its settings."""
    if isinstance(settings, list):
        for each in settings:
            yield from _printed(each)
    elif isinstance(settings, Mapping):
        for name, value in settings.items():
            if name in _PRINTED and isinstance(value, str):
                yield latex_escape(value)
            else:
                yield from _printed(value)


def letters_of_tables(plan: Plan) -> Iterator[str]:
    """Say which letters of a study's names its tables in LaTeX cannot have in every document."""
    settings = [study.model_dump(mode="json") for study in plan.studies.values()]
    text = " ".join(_printed([{"title": plan.title}, *settings]))
    for need, letters in letters_by_need(text).items():
        yield f"{plan.name}: in the tables for LaTeX the letters {letters} need {need}"


def slow_precision(plan: Plan, planned: Collection[str]) -> Iterator[str]:
    """Say which studies train on this processor in bf16 that it does not have."""
    if not {"plan", *TRAINING_RULES} & {*planned} or not lacks_bf16():
        return
    for study in plan.studies.values():
        if study.training.precision == "bf16" and not study.execution.gpus:
            yield (
                f"{study.name}: training.precision: bf16 takes about ten times as long as fp32 on"
                " this processor, which has no products in it; set fp32, or use another machine"
                " (docs/gpu.md)"
            )


def write_plan(jobs: Jobs) -> None:
    """Write the plan for the jobs of this start, which refuse any other, and note a stated plan.

    This file is no rule's output or input: its contents reach the rules through ids and parameters,
    so that a new seed or another title does not rerun what is done.
    """
    plan = jobs.plan
    write_sealed(paths.plan_file(plan.name), plan.to_json())
    os.environ[PLAN_SHA256] = seal(plan.to_json())
    if plan.stated is not None:
        note_stated(plan, jobs.study_dir, stated_measures(plan))


def try_code(jobs: Jobs, planned: Collection[str], is_local: bool) -> None:
    """Try GPUs and own code, if the planned jobs need them.

    This is done in a process of its own, since it imports torch.

    Raises:
        ValueError: The trial has failed, with what it said.
    """
    training = TRAINING_RULES & {*planned}
    evaluation = STAGES.keys() & {*planned}
    studies = jobs.plan.studies.values()
    # What submits to a cluster needs no GPU, and evaluation needs one at the most.
    n_gpus = 0
    if is_local and training:
        n_gpus = max(study.execution.gpus for study in studies)
    elif is_local and any(STAGES[name].gpu for name in evaluation):
        n_gpus = min(max(study.execution.gpus for study in studies), 1)
    optimizers = training and any(list(custom_optimizers(study)) for study in studies)
    metrics = any(study.evaluation.metrics for study in studies)
    jobs_after = training or evaluation or "report_of_study" in planned
    if not (
        n_gpus
        or optimizers
        or (metrics and (training or "embeddings" in planned))
        or (jobs_after and any(entries(jobs.plan)))
    ):
        return
    command = [sys.executable, "-m", "coupled_adam_bench", "try-code"]
    command += ["--plan", str(paths.plan_file(jobs.plan.name)), "--gpus", str(n_gpus)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().removeprefix("error: ")
        raise ValueError(said or f"the trial of own code ended with status {done.returncode}")
    sys.stderr.write(done.stderr)


def start_live_import(jobs: Jobs, planned: Collection[str]) -> subprocess.Popen[bytes] | None:
    """Start the import into MLflow beside the jobs. It ends with this process, which holds its
    standard input."""
    settings = [study.execution.track_seconds for study in jobs.plan.studies.values()]
    every = list(filter(None, settings))
    if not every or not TRAINING_RULES & {*planned}:
        return None
    log = jobs.study_dir / "logs" / "mlflow-live.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "coupled_adam_bench", "follow"]
    command += ["--plan", str(paths.plan_file(jobs.plan.name)), "--seconds", str(min(every))]
    with log.open("w") as file:
        # In a session of its own, Ctrl-C does not reach it: it ends at the end of the input.
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True
        )


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
