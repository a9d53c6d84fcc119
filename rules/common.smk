# Reads the study, finds everything wrong with it before the first job, and names the files that the rules share.
# in:  config (a study, see workflow/schemas/study.schema.json, and the switch `partial`)
# out: results/<study>/plan.json, which every stage is given

import re
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from coupled_adam_bench import paths, protocol
from coupled_adam_bench.config import parse_any_study
from coupled_adam_bench.evaluation.checks import check_evaluation
from coupled_adam_bench.files import digest, write_json
from coupled_adam_bench.plan import make_plan
from coupled_adam_bench.results.groups import table_groups
from coupled_adam_bench.training.checks import check_optimizers, custom_optimizers

# With `--config partial=true` the tables are made from the evaluations that are there, and nothing is trained.
PARTIAL = bool(config.get("partial"))

# Where the parts of a composite study are looked for: beside its own file, then among the shipped ones.
STUDY_FOLDERS = [*(Path(file).parent for file in workflow.configfiles), Path(workflow.basedir) / "workflow" / "config"]

try:
    STUDY = parse_any_study({key: value for key, value in config.items() if key != "partial"})
    PLAN = make_plan(STUDY, STUDY_FOLDERS)
    table_groups(PLAN)  # refuses tables that cannot be made
except ValueError as error:
    raise WorkflowError(str(error)) from None

# A dry run shows the study even where its evaluation sets or the packages of its own optimizers are still to be fetched;
# `onstart` stops a real one.
MISSING = {}
for part in PLAN.parts:
    for check in (check_evaluation, check_optimizers):
        try:
            check(part.study)
        except ValueError as error:
            MISSING.setdefault(str(error), []).append(part.study.study)
MISSING = "\n".join(f"{', '.join(names)}: {problem}" for problem, names in MISSING.items())
if MISSING:
    logger.warning(MISSING)

PYTHON = sys.executable
STUDY_DIR = paths.study_dir(PLAN.name)
PLAN_FILE = STUDY_DIR / "plan.json"
DATA = paths.RESULTS / "data"
RUNS = paths.RESULTS / "runs"
TEMPLATES = f"{workflow.basedir}/templates"

CELLS = list(PLAN.cells)


def batches(cells_per_job):
    """Split the cells into jobs: one cell each, or several where starting Python takes longer than the work.

    ``cells_per_job`` names the setting of a part's execution; a job has cells of one part only.
    """
    jobs = {}
    for part in PLAN.parts:
        cells, size = PLAN.cells_of(part), getattr(part.study.execution, cells_per_job)
        for start in range(0, len(cells), size):
            job = cells[start] if size == 1 else f"batch-{len(jobs):03d}"
            jobs[job] = cells[start : start + size]
    return jobs


BATCHES = batches("evaluation_cells_per_job")
# Those whose study has `evaluation.theory`.
THEORY = [job for job, cells in BATCHES.items() if PLAN.part_of(cells).study.evaluation.theory]


def part_of(wildcards):
    """Return the part of the plan that a job works for: the part of its data, its batch, its cell or its trunk."""
    names = dict(wildcards.items())
    if "data" in names:
        return PLAN.part_with_data(names["data"])
    return PLAN.part_of(BATCHES[names["batch"]] if "batch" in names else [names.get("cell") or names["trunk"]])


def execution(setting):
    """Return the function that gives this setting of a job's part."""
    return lambda wildcards: getattr(part_of(wildcards).study.execution, setting)


# Memory that a job frees stays with it, instead of going back to the kernel and coming again page by page in each step:
# up to a third faster on a CPU (benchmarks/allocator.py). 32 MiB is the most that glibc takes here.
ENVIRONMENT = (
    "OMP_NUM_THREADS={threads} MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=1073741824"
    " MALLOC_TOP_PAD_=67108864"
)


wildcard_constraints:
    data="|".join(map(re.escape, PLAN.data_ids)),
    cell=r"[^/]+",
    trunk=r"[^/]+",
    step=r"[0-9]+",
    batch=r"[^/]+",


onstart:
    if MISSING:
        raise WorkflowError(MISSING)
    # No rule's output and no rule's input: its contents reach the rules through ids and parameters,
    # so that a new seed or another title does not rerun what is done.
    write_json(PLAN_FILE, PLAN.to_json())
    if any(list(custom_optimizers(part.study)) for part in PLAN.parts):
        shell("{PYTHON} -m coupled_adam_bench try-optimizers --plan {PLAN_FILE}")  # not here: it imports torch


onsuccess:
    if (STUDY_DIR / "report" / "index.html").exists():
        print(f"Report: {STUDY_DIR}/report/index.html   Tables: {STUDY_DIR}/tables/")
