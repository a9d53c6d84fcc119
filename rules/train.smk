# in:  results/data/<data id>/
# out: results/runs/<cell id>/: cell.json, history.jsonl, checkpoints/, model/; run.json last
#      results/trunks/<trunk id>/: what cells of schedule wsd share before their decay; branch-<step>.json last
#      results/<study>/training/: for each job an empty file that says that its cells are trained
#      results/<study>/tuning/: the choice of each tuning, for which the training of its cells waits
# Only the empty files are outputs: Snakemake deletes those of a failed job, and runs belong to all studies that share
# them and must outlive it.


rule train:
    """Target: all cells of the study are trained."""
    input:
        [trained_marker(job) for job in TRAINING],


TRUNKS = PLAN.trunks
# Where cells leave their trunks, as (trunk, step).
BRANCH_OF = {cell: (trunk, prefix.steps) for trunk in TRUNKS for cell, prefix in TRUNKS[trunk].prefixes.items()}
JOB_OF = {cell: job for job, cells in TRAINING.items() for cell in cells}


def branch_marker(trunk, step):
    """Return the empty file that says that a trunk is trained to a step."""
    return STUDY_DIR / "training" / f"{trunk}.step-{step}.done"


def branch_files(branches, product):
    """Name branches as inputs of a job; a trunk that grows does not run a job again whose product is there."""
    files = [branch_marker(*branch) for branch in sorted(set(branches))]
    return [ancient(file) for file in files] if product.exists() else files


def branches_of(wildcards):
    """Name the branches with which a job's cells begin, of those that share a trunk."""
    branches = [BRANCH_OF[cell] for cell in TRAINING[wildcards.job] if cell in BRANCH_OF]
    return branch_files(branches, trained_marker(wildcards.job))


def branch_before(wildcards):
    """Name the branch from which a trunk goes on."""
    trunk, end = wildcards.trunk, int(wildcards.step)
    before = [(trunk, step) for step in TRUNKS[trunk].branches if step < end]
    return branch_files(before[-1:], branch_marker(trunk, end))


def choices_before(wildcards):
    """Name the choices for which a job's cells wait, of those whose settings are tuned."""
    return [
        chosen_marker(tuning)
        for tuning in dict.fromkeys(PLAN.trained[cell].tuning for cell in TRAINING[wildcards.job])
        if tuning
    ]


def candidates_trained(wildcards):
    """Name the markers of the jobs that train the candidates of a tuning."""
    cells = PLAN.tunings[wildcards.tuning].cells
    return list(dict.fromkeys(trained_marker(JOB_OF[cell.id]) for cell in cells))


def choosing(wildcards):
    """Return a hash of all that can change the losses by which a tuning chooses; a change chooses again."""
    first = PLAN.tunings[wildcards.tuning].first
    measurement = measurement_of(VALIDATION_LOSS, first.study, first.data_id)
    return digest([measurement.stage.version, measurement.columns, measurement.settings])


def data_of(cell):
    """Name the data of a cell. Its contents are part of the cell's id: data that is only newer changes nothing."""
    return ancient(prepared_marker(cell.data_id))


def tasks_tried(wildcards):
    """Name the trial of the downstream tasks, if the job's study has one."""
    return [ancient(TASKS_TRIED)] if study_of_job(wildcards).name in WITH_TRIAL else []


def warning_before_the_limit(wildcards, attempt):
    """Return SLURM's option for a warning before the time limit: training writes a checkpoint and is queued again.

    Two minutes before and as long as the checkpoint takes, or a quarter of a limit that is short.
    """
    seconds = min(stop_seconds(parts_of_job(wildcards)), 60 * training_minutes(wildcards, attempt) // 4)
    return f"'--signal=TERM@{seconds}'"


# A job of a cluster that is stopped before its time limit goes back into the queue, and counts as no retry.
REQUEUE = " --requeue" if workflow.remote_exec else ""
TASKS_TRIED = STUDY_DIR / "training" / "tasks.json"
WITH_TRIAL = [
    study.name
    for study in PLAN.studies.values()
    if study.execution.try_tasks and study.evaluation.downstream.tasks != "synthetic"
]


# So a task that cannot be scored is known before anything is trained.
rule try_tasks:
    """Load the downstream tasks and read their requests, without a model."""
    input:
        rules.data.input,
    output:
        TASKS_TRIED,
    log:
        STUDY_DIR / "logs" / "try_tasks.log",
    threads: 1
    resources:
        mem_mb=memory(8000),
        runtime=120,
    params:
        settings=[
            measurement and digest(measurement.settings)
            for (stage, study), measurement in MEASUREMENTS.items()
            if stage == "downstream"
        ],
    shell:
        watched(ENVIRONMENT + " {PYTHON:q} -m coupled_adam_bench try-tasks --plan {PLAN_FILE:q} --out {output:q}", None)


# Each branch has a job, so that the cells of a small D need not wait for the end of the trunk.
rule train_trunk:
    """Train what cells of several D share, up to a step at which cells leave it."""
    input:
        lambda wildcards: data_of(TRUNKS[wildcards.trunk].run),
        branch_before,
        tasks_tried,
    output:
        STUDY_DIR / "training" / "{trunk}.step-{step}.done",
    log:
        STUDY_DIR / "logs" / "{trunk}.step-{step}.train.log",
    benchmark:
        STUDY_DIR / "logs" / "{trunk}.step-{step}.train.tsv"
    wildcard_constraints:
        trunk="|".join(map(re.escape, TRUNKS)) or "none",
    threads: execution("training_threads")
    resources:
        mem_mb=training_memory(lambda wildcards: [paths.trunk_dir(wildcards.trunk)]),
        runtime=training_minutes,
        gpu=execution("gpus"),
        nodes=1,
        slurm_extra=warning_before_the_limit,
    params:
        version=versions.TRAIN,
        branch=lambda wildcards: paths.branch_file(wildcards.trunk, int(wildcards.step)),
    shell:
        watched(
            ENVIRONMENT + " {PYTHON:q} -m coupled_adam_bench train-trunk --plan {PLAN_FILE:q}"
            " --branches {params.branch:q} --done {output:q}" + REQUEUE + LEASE_GPUS,
            "train_mem_mb",
        )


rule train_cells:
    """Train cells, or go on with them."""
    input:
        lambda wildcards: data_of(PLAN.trained[TRAINING[wildcards.job][0]]),
        branches_of,
        choices_before,
        tasks_tried,
    output:
        STUDY_DIR / "training" / "{job}.done",
    log:
        STUDY_DIR / "logs" / "{job}.train.log",
    benchmark:
        STUDY_DIR / "logs" / "{job}.train.tsv"
    wildcard_constraints:
        job="|".join(map(re.escape, TRAINING)),
    # The longest job comes first, so that no core waits for the last one.
    priority: lambda wildcards: sum(PLAN.trained[cell].flops for cell in TRAINING[wildcards.job]) / 1e12
    threads: execution("training_job_threads")
    resources:
        mem_mb=training_memory(lambda wildcards: [paths.run_dir(cell) for cell in ids(TRAINING[wildcards.job])]),
        runtime=training_minutes,
        gpu=execution("gpus"),
        nodes=1,
        slurm_extra=warning_before_the_limit,
    params:
        version=versions.TRAIN,
        cells=lambda wildcards: TRAINING[wildcards.job],
    shell:
        watched(
            ENVIRONMENT + " {PYTHON:q} -m coupled_adam_bench train --plan {PLAN_FILE:q}"
            " --cells {params.cells:q} --done {output:q}" + REQUEUE + LEASE_GPUS,
            "train_mem_mb",
        )


# A choice is no more than a comparison of losses, so it has no cells of its own and stays with the study.
rule choose:
    """Measure the validation loss of a tuning's candidates, and choose one of them."""
    input:
        lambda wildcards: data_of(PLAN.tunings[wildcards.tuning].first),
        candidates_trained,
    output:
        CHOICES / "{tuning}.json",
    log:
        STUDY_DIR / "logs" / "{tuning}.choose.log",
    benchmark:
        STUDY_DIR / "logs" / "{tuning}.choose.tsv"
    wildcard_constraints:
        tuning="|".join(map(re.escape, PLAN.tunings)) or "none",
    threads: execution("evaluation_threads")
    resources:
        mem_mb=memory("evaluation_mem_mb"),
        runtime=growing("evaluation_minutes"),
        gpu=ONE_GPU,
        nodes=1,
    params:
        settings=choosing,
    shell:
        watched(
            ENVIRONMENT + " {PYTHON:q} -m coupled_adam_bench choose --plan {PLAN_FILE:q} --tuning {wildcards.tuning:q}"
            " --out {output:q}" + LEASE_GPUS,
            "evaluation_mem_mb",
        )
