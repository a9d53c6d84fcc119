# Reads the study, finds everything wrong with it before the first job, and names what the rules share.
# in:  config (a study, see workflow/schemas/study.schema.json, and the switch `partial`)

import contextlib
import os
import re
import shlex
import sys
from pathlib import Path

from snakemake.cli import get_argument_parser
from snakemake.exceptions import CliException, WorkflowError
from snakemake.logging import logger
from snakemake_interface_executor_plugins.settings import SharedFSUsage

from coupled_adam_bench.cli.arguments import check_given_once
from coupled_adam_bench.cli.guard import check_places, check_readable
from coupled_adam_bench.cli.jobs import Jobs, switch
from coupled_adam_bench.cli.resources import JobResources
from coupled_adam_bench.machine import surroundings
from coupled_adam_bench.machine.process import end_with_parent
from coupled_adam_bench.machine.visible_gpus import visible_gpus
from coupled_adam_bench.results.groups import layout_of
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import await_files, digest
from coupled_adam_bench.study.catalogue import versions
from coupled_adam_bench.study.catalogue.stages import STAGES
from coupled_adam_bench.study.plan import make_plan, read_plan_file
from coupled_adam_bench.study.settings import parse_any_study
from coupled_adam_bench.study.settings.reading import check_files

# A Snakemake in a job of a cluster does not outlive its job.
if workflow.remote_exec:
    end_with_parent(5)

# The folder of this workflow, and whether another one has imported it with `module`.
ROOT = Path(str(workflow.current_basedir)).parent
IMPORTED = not workflow.modifier.is_main_snakefile()

# No Python that a job starts takes a user's `random.py` in the working folder for its own.
os.environ["PYTHONSAFEPATH"] = "1"
# Jobs have the environment of this process. A workflow that imports this one keeps its own, and our jobs look themselves.
if not IMPORTED:
    os.environ["PYTHONUTF8"] = "1"
    if cleared := surroundings.clear():
        logger.warning(surroundings.describe(cleared))
# Runs are no outputs of rules (rules/train.smk), so no storage plugin would carry them.
if SharedFSUsage.INPUT_OUTPUT not in workflow.storage_settings.shared_fs_usage:
    raise WorkflowError(
        "all jobs must see one folder `results`, on a shared file system: see docs/import.md"
    )


class UserError(CliException):
    """What a user can mend, which Snakemake prints without the lines of the code that found it."""

    # contextlib would set it where the error passes a `with` of Snakemake, as in `onstart`.
    __traceback__ = property(lambda self: None, lambda self, lines: None)


@contextlib.contextmanager
def errors_of_users():
    """Let Snakemake print our sentence for what a user can mend, and nothing else."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from None


def read_plan():
    """Return the plan of the study; a job of a cluster takes that of its run, since the study may have been edited."""
    if workflow.remote_exec:
        file = paths.plan_file(config["study"])
        await_files([file])
        return read_plan_file(file)
    if not IMPORTED:
        check_files(
            map(Path, workflow.configfiles)
        )  # Snakemake keeps the last value of a key and says nothing
    # The studies of a composite are looked for beside its own file, then among the shipped ones.
    folders = [*(Path(file).parent for file in workflow.configfiles), ROOT / "workflow" / "config"]
    return make_plan(
        parse_any_study({key: value for key, value in config.items() if key != "partial"}), folders
    )


with errors_of_users():
    if workflow.is_main_process:
        check_given_once(get_argument_parser(), sys.argv[1:])
    # With `--config partial=true` the tables are made from the evaluations that are there, and nothing is trained.
    PARTIAL = switch(config, "partial")
    PLAN = read_plan()
    LAYOUT = layout_of(PLAN)  # refuses tables that cannot be made
    check_readable(
        [
            *(paths.RESULTS, paths.RUNS, paths.study_dir(PLAN.name)),
            *map(paths.data_dir, PLAN.data_ids),
            *map(paths.run_dir, PLAN.trained),
        ]
    )
    if workflow.is_main_process:
        check_places(PLAN)

# Everything that `snakemake --lint` finds is on purpose. No rule names an environment of its own: all run in the one that
# Snakemake runs in (environment.yml). PYTHONSAFEPATH and PYTHONUTF8 are set here, not asked for. `rule` in a command is
# Snakemake's own name of the rule. The rules `plan` and `fetch` have no log:
# they print. The plan's contents reach a rule through its ids and parameters.
STUDY_DIR = paths.study_dir(PLAN.name)
PLAN_FILE = paths.plan_file(PLAN.name)
TEMPLATES = str(ROOT / "templates")
CELLS = list(PLAN.cells)


def verbatim(text):
    """Return a text as a word of a command that Snakemake formats."""
    return shlex.quote(str(text)).replace("{", "{{").replace("}", "}}")


def bench(stage, arguments=""):
    """Return the command of a stage; where Snakemake formats the commands of a module, it knows no name of this file."""
    return f"{verbatim(sys.executable)} -m coupled_adam_bench {stage} --plan {verbatim(PLAN_FILE)} {arguments}"


JOBS = Jobs(PLAN)
# A job of a cluster and a dry run know groups, and Snakemake sets them after it has read the rules.
ASKED = JobResources(
    JOBS,
    lambda: workflow.group_settings.overwrite_groups if workflow.group_settings else {},
)
MEASUREMENTS = JOBS.measurements

# What is missing stops only a run that has jobs which need it, and is told where it matters: see rules/start.smk.
MISSING = JOBS.find_missing()

ONE_GPU = JOBS.by_study(lambda study: min(study.execution.gpus, 1))

# A job keeps the memory that it frees, instead of giving it to the kernel and getting it back page by page in each step.
# Training is up to a third faster so on a CPU (benchmarks/allocator.py). 32 MiB is the most that glibc takes here.
ENVIRONMENT = (
    "OMP_NUM_THREADS={threads} MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=1073741824"
    " MALLOC_TOP_PAD_=67108864 "
)

# On a cluster a job has its GPUs from there. On one machine, no more jobs run at once than there are GPUs for, and they
# agree on theirs.
if (
    workflow.local_exec
    and "gpu" not in workflow.global_resources
    and (n_gpus := len(visible_gpus()))
):
    workflow.register_resource("gpu", n_gpus)
LEASE_GPUS = "" if workflow.remote_exec else " --lease-gpus {resources.gpu}"


wildcard_constraints:
    data="|".join(map(re.escape, PLAN.data_ids)),
    trunk=r"[^/]+",
    step=r"[0-9]+",
    job=r"[^/]+",
    tuning=r"[^/]+",
    batch=r"[^/]+",
