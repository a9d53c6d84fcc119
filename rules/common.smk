# Reads the study, finds everything wrong with it before the first job, and names the files that the rules share.
# in:  config (a study, see workflow/schemas/study.schema.json, and the switch `partial`)
# out: results/<study>/plan.json, which every stage is given

import sys

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from coupled_adam_bench import paths, protocol
from coupled_adam_bench.config import parse_study
from coupled_adam_bench.evaluation.checks import check_evaluation
from coupled_adam_bench.files import digest, write_json
from coupled_adam_bench.plan import make_plan
from coupled_adam_bench.report.figures import FIGURES
from coupled_adam_bench.results.groups import table_groups

# With `--config partial=true` the tables are made from the evaluations that are there, and nothing is trained.
PARTIAL = bool(config.get("partial"))

try:
    STUDY = parse_study({key: value for key, value in config.items() if key != "partial"})
    PLAN = make_plan(STUDY)
    table_groups(PLAN)  # refuses tables that cannot be made
except ValueError as error:
    raise WorkflowError(str(error)) from None

# A dry run shows the study even where its evaluation sets are still to be fetched; `onstart` stops a real one.
MISSING = None
try:
    check_evaluation(STUDY)
except ValueError as error:
    MISSING = str(error)
    logger.warning(MISSING)

PYTHON = sys.executable
RUN = STUDY.execution
STUDY_DIR = paths.study_dir(STUDY.study)
PLAN_FILE = STUDY_DIR / "plan.json"
DATA_DIR = paths.data_dir(PLAN.data_id)
RUNS = paths.RESULTS / "runs"
TEMPLATES = f"{workflow.basedir}/templates"

CELLS = list(PLAN.cells)


def batches(cells_per_job):
    """Split the cells into jobs: one cell each, or several where starting Python takes longer than the work."""
    if cells_per_job == 1:
        return {cell: [cell] for cell in CELLS}
    starts = range(0, len(CELLS), cells_per_job)
    return {f"batch-{start // cells_per_job:03d}": CELLS[start : start + cells_per_job] for start in starts}


BATCHES = batches(RUN.evaluation_cells_per_job)
# Memory that a job frees stays with it, instead of going back to the kernel and coming again page by page in each step:
# up to a third faster on a CPU (benchmarks/allocator.py). 32 MiB is the most that glibc takes here.
ENVIRONMENT = (
    "OMP_NUM_THREADS={threads} MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=1073741824"
    " MALLOC_TOP_PAD_=67108864"
)


wildcard_constraints:
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


onsuccess:
    if (STUDY_DIR / "report" / "index.html").exists():
        print(f"Report: {STUDY_DIR}/report/index.html   Tables: {STUDY_DIR}/tables/")
