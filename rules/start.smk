# What happens before jobs are planned, and before the first one starts.
# out: results/<study>/plan.json, which every stage is given
#      results/<study>/logs/mlflow-live.log, of the import into MLflow beside the jobs
#      results/<study>/.lock, which one run of the study at a time holds: the others wait, and find its work done

import os
import re
import subprocess
from contextlib import suppress

from coupled_adam_bench.machine.device import check_threads
from coupled_adam_bench.store.files import LATENCY_WAIT, seal, write_sealed
from coupled_adam_bench.cli.guard import (
    bring_to_present,
    damaged_choices,
    edited_plan,
    mark_damaged_data,
)
from coupled_adam_bench.cli.guard import (
    misplaced,
    remove_outdated,
    remove_stale_locks,
    set_aside,
    unmeasured,
    unprepared,
)
from coupled_adam_bench.cli.guard import untrained
from coupled_adam_bench.store.locks import FolderLock
from coupled_adam_bench.store.outputs import IMPORT_SUMMARY, not_imported
from coupled_adam_bench.study.plan import PLAN_SHA256
from coupled_adam_bench.study.stated import measured_as, note_stated
from coupled_adam_bench.cli.status import Part, Workflow
from coupled_adam_bench.tracking.records import run_name
from coupled_adam_bench.tracking.uri import destination
from coupled_adam_bench.training.checks import custom_optimizers


def find_damage():
    """Yield the files that differ from what was written, from the data to the evaluations."""
    measured = {
        measured_marker(batch, stage): (measurement, ids(cells))
        for batch, cells in BATCHES.items()
        for (stage, study), measurement in MEASUREMENTS.items()
        if measurement is not None and study == PLAN.cells[cells[0]].study.name
    }
    trained_jobs = {trained_marker(job): ids(cells) for job, cells in TRAINING.items()}
    prepared = {prepared_marker(data): paths.data_dir(data) for data in PLAN.data_ids}
    run_dirs = [paths.run_dir(cell) for cells in trained_jobs.values() for cell in cells]
    yield from edited_plan(PLAN_FILE)
    yield from unprepared(prepared)
    yield from damaged_choices(PLAN.tunings.values(), CHOICES)
    # First of the runs: the others then find that these are missing.
    yield from misplaced([*run_dirs, *map(paths.trunk_dir, TRUNKS)])
    yield from untrained(trained_jobs, paths.RUNS)
    yield from unmeasured(measured)


def mend(lock):
    """Set aside the files that differ from what was written, and remove the locks of a killed run."""
    for said in map(mark_damaged_data, map(paths.data_dir, PLAN.data_ids)):
        if said:
            logger.warning(said)
    for damage in find_damage():
        with suppress(FileNotFoundError):  # a start of another study with the same run was faster
            logger.warning(set_aside(damage))
    remove_outdated(STUDY_DIR, MADE_FOR)
    if not_imported(STUDY_DIR):
        (STUDY_DIR / IMPORT_SUMMARY).unlink()
    for said in (bring_to_present(STUDY_DIR), remove_stale_locks(Path(".snakemake"), STUDY_DIR, lock.left_by)):
        if said:
            logger.warning(said)
    if not PLAN_FILE.exists():  # also where no job will run
        write_sealed(PLAN_FILE, PLAN.to_json())


def lock_study(wait):
    """Return a list with the lock of the study; it is empty for a run that does not wait and cannot have the lock.

    Another run has it, or the results may only be read: a dry run changes nothing, and shows them as they are.
    """
    try:
        lock = FolderLock(STUDY_DIR)
        return [lock] if lock.acquire(math.inf if wait else 0) else []
    except OSError as error:
        if not wait:
            return []
        raise WorkflowError(
            f"{error}: the results must be writable to run a study; `snakemake -n` only reads"
        ) from None


# The main process holds the lock until it ends. The processes of its jobs take none, nor does a study without files.
LOCKS = []
if workflow.is_main_process and STUDY_DIR.is_dir():
    LOCKS = lock_study(wait=not workflow.output_settings.dryrun)
    for lock in LOCKS:
        mend(lock)
    if workflow.output_settings.dryrun:
        [lock.release() for lock in LOCKS]


TRAINING_RULES = {"train_cells", "train_trunk"}
EVALUATION_RULES = {*STAGES, "evaluation"}
LIVE_IMPORTS = []


def start_live_import(seconds):
    """Start the import into MLflow beside the jobs. It ends with this process, which holds its standard input."""
    log = STUDY_DIR / "logs" / "mlflow-live.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        command = [PYTHON, "-m", "coupled_adam_bench", "follow", "--plan", str(PLAN_FILE), "--seconds", str(seconds)]
        # In a session of its own, Ctrl-C does not reach it: it ends at the end of the input.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=file, start_new_session=True)
    LIVE_IMPORTS.append(process)


def trained_parts(rule_name, wildcards):
    """Return what a training job trains, none for other jobs."""
    if rule_name == "train_trunk":
        trunk, end = wildcards["trunk"], int(wildcards["step"])
        part, history = trunk_part(TRUNKS[trunk], end), paths.RunFiles(paths.trunk_dir(trunk)).history
        record = paths.branch_file(trunk, end)
        return [Part(f"{trunk} to step {end}", history, record, end - part.steps, end, part.flops, is_cell=False)]
    if rule_name != "train_cells":
        return []
    names, cells = TRAINING[wildcards["job"]], chosen(PLAN).by_job_name
    runs = [(name, cells[name], paths.RunFiles(paths.run_dir(cells[name].id))) for name in names]
    return [
        Part(
            run_name(cell),
            files.history,
            files.record,
            cell.steps - OWN_PARTS[name].steps,
            cell.steps,
            OWN_PARTS[name].flops,
            is_cell=name in PLAN.cells,
        )
        for name, cell, files in runs
    ]


def say_what_is_planned(full_logs):
    """Tell the logger `study` (profiles/default) what this run is going to do."""
    jobs = list(workflow.dag.needrun_jobs())
    trained = [part for job in jobs for part in trained_parts(job.rule.name, job.wildcards_dict)]
    records = {paths.RunFiles(paths.run_dir(cell.id)).record for cell in chosen(PLAN).cells.values()}
    done = {record for record in records if record.exists()} - {part.record for part in trained}
    said = Workflow(
        study=PLAN.name,
        n_cells=len(CELLS),
        n_trained=len(done),
        n_jobs=len(jobs),
        flops=sum(part.flops for part in trained),
        logs=STUDY_DIR / "logs",
        full_log=next(map(os.path.relpath, full_logs), ""),
        parts=trained_parts,
    )
    logger.info(f"{PLAN.name}: {len(jobs)} jobs", extra={"coupled_adam_bench_workflow": said})


onstart:
    planned = {job.rule.name for job in workflow.dag.needrun_jobs()}
    for rules_kind, rule_names in (("evaluate", {*EVALUATION_RULES, "try_tasks"}), ("train", TRAINING_RULES)):
        if rules_kind in MISSING and planned & rule_names:
            raise WorkflowError(MISSING[rules_kind])
    if not workflow.local_exec and not re.fullmatch(r"[\w@%+=:,./-]+", PYTHON):
        raise WorkflowError(
            f"{PYTHON}: no job of a cluster could start this Python, since Snakemake does not quote its path there; make "
            "the environment in a folder whose path has no spaces, quotes or other characters that mean something to a shell"
        )
    if workflow.local_exec:  # the machine that submits to a cluster says nothing of its nodes
        try:
            factors = "train_threads x train_processes x train_cells_at_once"
            for said, of_job, rule_names in (
                (factors, "training_job_threads", TRAINING_RULES),
                ("evaluation_threads", "evaluation_threads", EVALUATION_RULES),
            ):
                for threads in {getattr(study.execution, of_job) for study in PLAN.studies.values()}:
                    if planned & rule_names:
                        check_threads(f"execution.{said}", threads)
        except ValueError as error:
            raise WorkflowError(str(error)) from None
    if "track" in planned:
        try:
            destination()
        except ValueError as error:
            raise WorkflowError(str(error)) from None
    LOCKS.extend([] if LOCKS else lock_study(wait=True))
    # For jobs, on a cluster too: what another job has written may be visible late.
    os.environ[LATENCY_WAIT] = str(workflow.execution_settings.latency_wait)
    # This file is no rule's output or input: its contents reach the rules through ids and parameters,
    # so that a new seed or another title does not rerun what is done.
    write_sealed(PLAN_FILE, PLAN.to_json())
    os.environ[PLAN_SHA256] = seal(PLAN.to_json())  # jobs of this start refuse any other plan
    if PLAN.stated is not None:
        try:
            note_stated(PLAN, STUDY_DIR, measured_as(PLAN.stated, PLAN.blocks, MEASUREMENTS))
        except (ValueError, OSError) as error:
            raise WorkflowError(str(error)) from None
    # Code that imports torch or numpy is tried in a process of its own. What submits to a cluster needs no GPU itself.
    if workflow.local_exec and planned & (TRAINING_RULES | EVALUATION_RULES - {"embeddings"}):
        if n_gpus := max(study.execution.gpus for study in PLAN.studies.values()):
            n_gpus = n_gpus if planned & TRAINING_RULES else 1
            shell("{PYTHON:q} -m coupled_adam_bench try-gpus {n_gpus}")
    if planned & TRAINING_RULES and any(list(custom_optimizers(study)) for study in PLAN.studies.values()):
        shell("{PYTHON:q} -m coupled_adam_bench try-optimizers --plan {PLAN_FILE:q}")
    if planned & {*TRAINING_RULES, "embeddings"} and any(
        study.evaluation.metrics for study in PLAN.studies.values()
    ):
        shell("{PYTHON:q} -m coupled_adam_bench try-metrics --plan {PLAN_FILE:q}")
    every = [study.execution.track_seconds for study in PLAN.studies.values() if study.execution.track_seconds]
    if every and planned & TRAINING_RULES:
        start_live_import(min(every))
    say_what_is_planned(log)


onsuccess:
    if (STUDY_DIR / "report" / "index.html").exists():
        print(f"Report: {STUDY_DIR}/report/index.html   Tables: {STUDY_DIR}/tables/")
    if reason := not_imported(STUDY_DIR):
        logger.warning(f"{reason}. Start again to bring MLflow up to date: nothing else will run")
