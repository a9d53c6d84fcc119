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

# Evaluation jobs: one cell each, or several where starting lm-eval would take longer than the evaluation.
CELLS = list(PLAN.cells)
BATCHES = (
    {cell: [cell] for cell in CELLS}
    if RUN.cells_per_job == 1
    else {
        f"batch-{start // RUN.cells_per_job:03d}": CELLS[start : start + RUN.cells_per_job]
        for start in range(0, len(CELLS), RUN.cells_per_job)
    }
)


wildcard_constraints:
    cell=r"[^/]+",
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
