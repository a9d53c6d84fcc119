# Reads the study, finds everything wrong with it before the first job, and names the files that the rules share.
# in:  config (a study, see workflow/schemas/study.schema.json, and the switch `partial`)

import math
import os
import re
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from coupled_adam_bench.store import paths
from coupled_adam_bench.study import versions
from coupled_adam_bench.study.catalog.stages import STAGES, VALIDATION_LOSS
from coupled_adam_bench.study.config import parse_any_study
from coupled_adam_bench.study.config.reading import read_study_file
from coupled_adam_bench.training.memory import job_mem_mb, stop_seconds
from coupled_adam_bench.tools.estimate.speed import LONGEST_MINUTES, read_speeds, train_minutes
from coupled_adam_bench.tools.estimate.cell import own_parts, trunk_part
from coupled_adam_bench.data.check import TREES
from coupled_adam_bench.evaluation.settings import check_evaluation
from coupled_adam_bench.store.stored import measurement_of
from coupled_adam_bench.store.files import await_files, digest
from coupled_adam_bench.machine.gpu_leases import visible_gpus
from coupled_adam_bench.cli.guard import check_readable, clear_folder
from coupled_adam_bench.study.plan import make_plan, read_plan_file
from coupled_adam_bench.store.runs import killed_attempts
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.training.checks import check_optimizers
from coupled_adam_bench.study.tuning import choice_file, chosen_values

# No Python that a job starts takes a user's `random.py` in the working folder for its own.
os.environ["PYTHONSAFEPATH"] = "1"

# With `--config partial=true` the tables are made from the evaluations that are there, and nothing is trained.
SWITCHES = {"true": True, "false": False}
if str(config.get("partial", False)).lower() not in SWITCHES:
    raise WorkflowError(f"partial: {config['partial']!r} must be true or false")
PARTIAL = SWITCHES[str(config.get("partial", False)).lower()]

# The folders in which the studies of a composite are looked for: beside its own file, then among the shipped ones.
STUDY_FOLDERS = [*(Path(file).parent for file in workflow.configfiles), Path(workflow.basedir) / "workflow" / "config"]


def read_plan():
    """Return the plan of the study; a job of a cluster takes that of its run, since the study may have been edited."""
    if workflow.remote_exec:
        file = paths.plan_file(config["study"])
        await_files([file])
        return read_plan_file(file)
    for file in workflow.configfiles:
        read_study_file(Path(file))  # Snakemake keeps the last value of a key and says nothing
    return make_plan(parse_any_study({key: value for key, value in config.items() if key != "partial"}), STUDY_FOLDERS)


try:
    PLAN = read_plan()
    LAYOUT = layout_of(PLAN)  # refuses tables that cannot be made
    check_readable(
        [
            *(paths.RESULTS, paths.RUNS, paths.study_dir(PLAN.name)),
            *map(paths.data_dir, PLAN.data_ids),
            *map(paths.run_dir, PLAN.trained),
        ]
    )
except ValueError as error:
    raise WorkflowError(str(error)) from None

# Everything that `snakemake --lint` finds is on purpose. Rules use PYTHON, PLAN_FILE, TEMPLATES and MADE_FOR without
# naming them as parameters: these are the same in all rules, and the plan's contents reach a rule through its ids and
# parameters. No rule names an environment of its own: all run in the one that Snakemake runs in (environment.yml).
# Functions stand beside the rules whose files they name. `ENVIRONMENT +` joins no path. PYTHONSAFEPATH is set here, not
# asked for. The rules `plan` and `fetch` have no log: they print.
PYTHON = sys.executable
STUDY_DIR = paths.study_dir(PLAN.name)
PLAN_FILE = paths.plan_file(PLAN.name)
TEMPLATES = f"{workflow.basedir}/templates"

CELLS = list(PLAN.cells)
CHOICES = STUDY_DIR / paths.TUNING


def chosen(plan):
    """Return the plan with the choices that are made so far; the names of jobs are the same before and after."""
    try:
        return plan.with_choices(chosen_values(plan.tunings.values(), CHOICES))
    except ValueError:  # a damaged choice, which rules/start.smk sets aside
        return plan


def clear_places():
    """Set aside what stands where a file or a folder of this study belongs and is none; yield a sentence for each."""
    yield from clear_folder(STUDY_DIR, paths.STUDY_FOLDERS)
    for data in PLAN.data_ids:
        yield from clear_folder(paths.data_dir(data), TREES)
    for folder in (*map(paths.run_dir, chosen(PLAN).trained), *map(paths.trunk_dir, PLAN.trunks)):
        yield from clear_folder(folder, paths.RUN_FOLDERS)


# Before anything there is read: to open a pipe may take for ever.
if workflow.is_main_process:
    try:
        for said in clear_places():
            logger.warning(said)
    except OSError as error:
        if not workflow.output_settings.dryrun:  # a dry run may look at results that this user may only read
            raise WorkflowError(f"{error}: the results must be writable to run a study; `snakemake -n` only reads")


def ids(jobs_cells):
    """Return the ids of cells, given by the names of their jobs, as far as they are known: their run folders."""
    tuned = any(PLAN.by_job_name[name].tuning for name in jobs_cells)
    cells = (chosen(PLAN) if tuned else PLAN).by_job_name
    return [cells[name].id for name in jobs_cells]


def find_missing():
    """Return by kind of rule what the study needs and does not find: evaluation sets, packages of optimizers."""
    missing = {}
    for rules_kind, check in (("evaluate", check_evaluation), ("train", check_optimizers)):
        problems = {}
        for study in PLAN.studies.values():
            try:
                check(study)
            except ValueError as error:
                problems.setdefault(str(error), []).append(study.name)
        if problems:
            missing[rules_kind] = "\n".join(f"{', '.join(names)}: {problem}" for problem, names in problems.items())
    return missing


# What is missing stops only a run that has jobs which need it: see rules/start.smk.
MISSING = find_missing()
for problem in MISSING.values():
    logger.warning(problem)


def batches(cells_per_job, cells_of, name="batch"):
    """Split cells into jobs: one cell each, or several where starting Python takes longer than the work.

    ``cells_per_job`` names the setting of a study's execution; a job has cells of one study only.
    """
    jobs = {}
    for study in PLAN.studies.values():
        cells, size = [cell.id for cell in cells_of(study)], getattr(study.execution, cells_per_job)
        for start in range(0, len(cells), size):
            job = cells[start] if size == 1 else f"{name}-{len(jobs):03d}"
            jobs[job] = cells[start : start + size]
    return jobs


def tuning_cells_of(study):
    """Return the cells of a study that are trained only to choose the settings of others."""
    return [cell for cell in PLAN.tuning_cells.values() if cell.study is study]


TRAINING = {
    **batches("train_cells_per_job", PLAN.cells_of),
    **batches("train_cells_per_job", tuning_cells_of, "tuning"),
}
BATCHES = batches("evaluation_cells_per_job", PLAN.cells_of)


def prepared_marker(data):
    """Return the empty file that says that data are prepared."""
    return STUDY_DIR / "data" / f"{data}.done"


def trained_marker(job):
    """Return the empty file that says that a training job's cells are trained."""
    return STUDY_DIR / "training" / f"{job}.done"


def measured_marker(batch, stage):
    """Return the empty file that says that a stage of evaluation has measured a batch."""
    return STUDY_DIR / "evaluation" / f"{batch}.{stage}.done"


def chosen_marker(tuning):
    """Return the file with the choice of a tuning."""
    return choice_file(CHOICES, tuning)


def checksums(stage):
    """Return the file with the checksums of what a stage of reporting writes."""
    return STUDY_DIR / "checksums" / f"{stage}.json"


def measurement_or_none(stage, study):
    """Return a stage under a study's settings, or None while files that belong to them cannot be read."""
    try:
        return measurement_of(STAGES[stage], study, PLAN.data_id(study))
    except ValueError:
        return None


# The measurements of each study, made once.
MEASUREMENTS = {
    (stage.name, study.name): measurement_or_none(stage.name, study)
    for study in PLAN.studies.values()
    for stage in study.stages
}


def study_of_job(wildcards):
    """Return the study that a job works for: that of its data, its batch, its cells or its trunk."""
    names = dict(wildcards.items())
    if "data" in names:
        return PLAN.study_with_data(names["data"])
    if "trunk" in names:
        return PLAN.trained[next(iter(PLAN.trunks[names["trunk"]].prefixes))].study
    if "tuning" in names:
        return PLAN.tunings[names["tuning"]].first.study
    return PLAN.trained[(BATCHES[names["batch"]] if "batch" in names else TRAINING[names["job"]])[0]].study


def by_study(value):
    """Return what all studies have for ``value(study)``, or, where they differ, the function that gives it to a job.

    Snakemake takes a tenth of its time for planning to call the functions of jobs.
    """
    values = {value(study) for study in PLAN.studies.values()}
    return values.pop() if len(values) == 1 else lambda wildcards: value(study_of_job(wildcards))


def execution(setting):
    """Return this setting of all studies, or the function that gives that of a job's study."""
    return by_study(lambda study: getattr(study.execution, setting))


def growing(setting):
    """Return the function that gives this setting of a job's study, times the number of the attempt."""
    return lambda wildcards, attempt: attempt * getattr(study_of_job(wildcards).execution, setting)


def kills(rulename, wildcards, attempt):
    """Return how many attempts at a job were killed without a word, by what :func:`watched` has noted.

    An attempt that the cluster refused has noted nothing. Before a job fails for the first time in this run of the
    workflow, none counts: one that a killed run has left may still be alive.
    """
    log = str(getattr(rules, rulename).log[0]).format(**wildcards)
    note = Path(f"{log}.attempts")
    words = note.read_text().split() if note.is_file() else []
    return min(attempt - 1, words.count("begun") - words.count("ended"))


def memory(mb):
    """Return the function of a job's memory: ``mb`` or the setting of that name, as much again for each kill."""

    def mem_mb(wildcards, attempt, rulename):
        least = mb if isinstance(mb, int) else getattr(study_of_job(wildcards).execution, mb)
        return (1 + kills(rulename, wildcards, attempt)) * least

    return mem_mb


ONE_GPU = by_study(lambda study: min(study.execution.gpus, 1))


# What runs have measured so far, for the time limits of the others.
SPEEDS = read_speeds(chosen(PLAN).trained.values(), paths.RUNS)
OWN_PARTS = own_parts(PLAN)


def parts_of_job(wildcards):
    """Return what a training job trains, or an evaluation that trains its cells once more: cells and their steps."""
    names = dict(wildcards.items())
    if "trunk" in names:
        return [trunk_part(PLAN.trunks[names["trunk"]], int(names["step"]))]
    if "batch" in names:
        return [PLAN.cells[cell] for cell in BATCHES[names["batch"]]]
    return [OWN_PARTS[cell] for cell in TRAINING[names["job"]]]


def training_memory(run_dirs=lambda wildcards: ()):
    """Return the function of a job's memory, which grows by half for each attempt that was killed without a word.

    ``run_dirs`` gives the job's run folders, in which the attempts are counted. The job's own count is taken where it
    is higher: a job may be killed before it trains.
    """

    def mem_mb(wildcards, attempt, rulename):
        killed = max(kills(rulename, wildcards, attempt), *map(killed_attempts, run_dirs(wildcards)), 0)
        execution = study_of_job(wildcards).execution
        at_once = 1 if "batch" in dict(wildcards.items()) else execution.cells_at_once
        return round(job_mem_mb(parts_of_job(wildcards), execution, at_once) * 1.5**killed)

    return mem_mb


def training_minutes(wildcards, attempt):
    """Return the time limit of a job that trains."""
    return train_minutes(parts_of_job(wildcards), study_of_job(wildcards).execution, SPEEDS, attempt)


# A job keeps the memory that it frees, instead of giving it to the kernel and getting it back page by page in each step.
# Training is up to a third faster so on a CPU (benchmarks/allocator.py). 32 MiB is the most that glibc takes here.
ENVIRONMENT = (
    "OMP_NUM_THREADS={threads} MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=1073741824"
    " MALLOC_TOP_PAD_=67108864"
)

# On a cluster a job has its GPUs from there. On one machine, no more jobs run at once than there are GPUs for, and they
# agree on theirs.
if workflow.local_exec and "gpu" not in workflow.global_resources and (n_gpus := len(visible_gpus())):
    workflow.register_resource("gpu", n_gpus)
LEASE_GPUS = "" if workflow.remote_exec else " --lease-gpus {resources.gpu}"


wildcard_constraints:
    data="|".join(map(re.escape, PLAN.data_ids)),
    trunk=r"[^/]+",
    step=r"[0-9]+",
    job=r"[^/]+",
    tuning=r"[^/]+",
    batch=r"[^/]+",


def watched(command, setting):
    """Return a job's command with its log, and a note beside it of each attempt that begins and that ends in order.

    An attempt that was killed without a word has not ended; the log says so, and names a ``setting`` of execution.
    """
    said = "killed, most likely for lack of memory" + (f" (execution.{setting})" if setting else "")
    return (
        # SIGTERM goes to all processes of a job. Without a trap Bash would end at once, and SLURM ends what is left of a
        # job: training could not write its checkpoint, and the attempt would count as killed.
        "trap : TERM; echo begun >> {log:q}.attempts; "
        + command
        + " > {log:q} 2>&1 && rm -f {log:q}.attempts || {{ status=$?; if [ $status = 137 ]; then"
        + f" echo {said!r} >> {{log:q}}; else echo ended >> {{log:q}}.attempts; fi; exit $status; }}}}"
    )
