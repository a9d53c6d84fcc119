# What happens before jobs are planned, and before the first one starts.
# out: results/<study>/plan.json, which every stage is given
#      results/<study>/logs/mlflow-live.log, of the import into MLflow beside the jobs
#      results/<study>/.lock, which one run of the study at a time holds: the others wait, and find its work done

import atexit

from coupled_adam_bench.cli import queue, start
from coupled_adam_bench.cli.planned import planned_work
from coupled_adam_bench.cli.status import ending, notes_of_data
from coupled_adam_bench.machine.process import pass_signals_on
from coupled_adam_bench.machine.slurm import check_slurm
from coupled_adam_bench.store.files import LATENCY_WAIT
from coupled_adam_bench.store.paths import not_imported

# The main process holds the lock until it ends. The processes of its jobs take none, nor does a dry run of a study without
# files. Two first starts at once wait for each other here, since Snakemake's own lock would end one of them.
LOCKS = []
LIVE_IMPORTS = []
PREPARED = []  # the ids of the data that this run prepares
if workflow.is_main_process and (STUDY_DIR.is_dir() or not workflow.output_settings.dryrun):
    with errors_of_users():
        LOCKS = start.lock_study(STUDY_DIR, wait=not workflow.output_settings.dryrun)
    for lock in LOCKS:
        for said in start.mend(JOBS, MADE_FOR, lock.left_by):
            logger.warning(said)
    if workflow.output_settings.dryrun:
        for lock in LOCKS:
            lock.release()
    elif LOCKS:
        atexit.register(start.leave_nothing, STUDY_DIR)
if workflow.is_main_process:
    is_dry = workflow.output_settings.dryrun
    said = start.plan_in_short(PLAN) if is_dry else f"{PLAN.name}: {len(CELLS)} cells"
    logger.info(said, extra={"coupled_adam_bench_study": STUDY_DIR})
    if is_dry:
        for problem in JOBS.missing_in_short.values():
            logger.warning(problem)


def begin():
    """Write what the jobs of this start read, which stays."""
    start.write_plan(JOBS)
    atexit.unregister(start.leave_nothing)


# Snakemake calls `onstart` of a module only if the workflow that imports it does (docs/import.md).
if IMPORTED and workflow.is_main_process and not workflow.output_settings.dryrun:
    with errors_of_users():
        begin()
    pass_signals_on()


# A workflow that imports this one may give our rules other names.
name_there = workflow.modifier.modify_rulename


onstart:
    ours = {name_there(name): name for name in rules._rules}
    # A cluster's jobs are elsewhere, and what is here then cancels them.
    if workflow.local_exec:
        pass_signals_on()
    work = [
        (ours.get(job.rule.name, ""), job.wildcards_dict) for job in workflow.dag.needrun_jobs()
    ]
    planned = {rule for rule, _ in work}
    PREPARED.extend(wildcards["data"] for rule, wildcards in work if rule == "prepare")
    with errors_of_users():
        if on_slurm := workflow.executor_plugin.name == "slurm":
            check_slurm()
        start.check_start(JOBS, planned, workflow.local_exec, MISSING)
        for problem in start.not_needed_now(planned, JOBS.missing_in_short):
            logger.warning(problem)
        begin()
    for said in start.letters_of_tables(PLAN):
        logger.warning(said)
    for said in start.word_lists(PLAN, planned):
        logger.warning(said)
    if workflow.local_exec:
        for said in start.slow_precision(PLAN, planned):
            logger.warning(said)
    # For jobs, on a cluster too: what another job has written may be visible late.
    os.environ[LATENCY_WAIT] = str(workflow.execution_settings.latency_wait)
    with errors_of_users():
        start.try_code(JOBS, planned, workflow.local_exec)
    if on_slurm:
        submitted = [job for job in workflow.dag.needrun_jobs() if not job.is_local]
        with errors_of_users():
            for said in queue.fit_partitions(
                ASKED, submitted, workflow.group_settings.overwrite_groups
            ):
                logger.warning(said)
        queue.watch_queue(logger.warning)
    LIVE_IMPORTS.append(start.start_live_import(JOBS, planned))
    said = planned_work(JOBS, work, next(map(os.path.relpath, log), ""))
    if (
        not {"plan", "rehearse", "fetch"} & planned
    ):  # these print, and the line would stand between
        logger.info(
            f"{PLAN.name}: {len(work)} jobs", extra={"coupled_adam_bench_workflow": said}
        )


onsuccess:
    if reason := not_imported(STUDY_DIR):
        logger.warning(
            f"{reason}. Start again to bring MLflow up to date: nothing else will run"
        )
    said = [*notes_of_data(PLAN, PREPARED), *ending(STUDY_DIR)]
    said = "\n".join(said) or f"{PLAN.name}: done"
    logger.info(said, extra={"coupled_adam_bench_ended": True})
