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
        [JOBS.trained(job) for job in JOBS.training],


def branches(wildcards, product):
    """Name the branches that come before a job; a trunk that grows does not run a job again whose product is there."""
    files = [JOBS.branch(*branch) for branch in JOBS.branches_before(wildcards)]
    return [ancient(file) for file in files] if product.exists() else files


def data_of(cell):
    """Name the data of a cell. Its contents are part of the cell's id: data that is only newer changes nothing."""
    return ancient(JOBS.prepared(cell.data_id))


def tasks_tried(wildcards):
    """Name the trial of the downstream tasks, if the job's study has one."""
    return [ancient(TASKS_TRIED)] if JOBS.study_of(wildcards).name in WITH_TRIAL else []


# A job of a cluster that is stopped before its time limit goes back into the queue, and counts as no retry.
REQUEUE = " --requeue" if workflow.remote_exec else ""
TASKS_TRIED = STUDY_DIR / "training" / "tasks.json"
WITH_TRIAL = [
    study.name
    for study in PLAN.studies.values()
    if study.evaluation.downstream_of_files is not None
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
    threads: ASKED.threads("try_tasks")
    resources:
        mem_mb=ASKED.memory("try_tasks"),
        runtime=ASKED.minutes("try_tasks"),
    params:
        settings=[
            measurement and digest(measurement.settings)
            for (stage, study), measurement in MEASUREMENTS.items()
            if stage == "downstream"
        ],
    shell:
        JOBS.watched(ENVIRONMENT + bench("try-tasks", "--out {output:q}"), None)


# Each branch has a job, so that the cells of a small D need not wait for the end of the trunk.
rule train_trunk:
    """Train what cells of several D share, up to a step at which cells leave it."""
    input:
        lambda wildcards: data_of(PLAN.trunks[wildcards.trunk].run),
        lambda wildcards: branches(wildcards, JOBS.branch(wildcards.trunk, int(wildcards.step))),
        tasks_tried,
    output:
        STUDY_DIR / "training" / "{trunk}.step-{step}.done",
    log:
        STUDY_DIR / "logs" / "{trunk}.step-{step}.train.log",
    benchmark:
        STUDY_DIR / "logs" / "{trunk}.step-{step}.train.tsv"
    wildcard_constraints:
        trunk="|".join(map(re.escape, PLAN.trunks)) or "none",
    threads: ASKED.threads("train")
    resources:
        mem_mb=ASKED.memory("train"),
        runtime=ASKED.minutes("train"),
        gpu=JOBS.execution("gpus"),
        nodes=1,
    params:
        version=versions.TRAIN,
        branch=lambda wildcards: paths.branch_file(wildcards.trunk, int(wildcards.step)),
    shell:
        JOBS.watched(
            ENVIRONMENT
            + bench("train-trunk", "--branches {params.branch:q} --done {output:q}")
            + REQUEUE
            + LEASE_GPUS,
            "train_mem_mb",
        )


rule train_cells:
    """Train cells, or go on with them."""
    input:
        lambda wildcards: data_of(PLAN.trained[JOBS.training[wildcards.job][0]]),
        lambda wildcards: branches(wildcards, JOBS.trained(wildcards.job)),
        JOBS.choices_before,
        tasks_tried,
    output:
        STUDY_DIR / "training" / "{job}.done",
    log:
        STUDY_DIR / "logs" / "{job}.train.log",
    benchmark:
        STUDY_DIR / "logs" / "{job}.train.tsv"
    wildcard_constraints:
        job="|".join(map(re.escape, JOBS.training)),
    # The longest job comes first, so that no core waits for the last one.
    priority: lambda wildcards: sum(PLAN.trained[cell].flops for cell in JOBS.training[wildcards.job]) / 1e12
    threads: ASKED.threads("train")
    resources:
        mem_mb=ASKED.memory("train"),
        runtime=ASKED.minutes("train"),
        gpu=JOBS.execution("gpus"),
        nodes=1,
    params:
        version=versions.TRAIN,
        cells=lambda wildcards: JOBS.training[wildcards.job],
    shell:
        JOBS.watched(
            ENVIRONMENT
            + bench("train", "--cells {params.cells:q} --done {output:q}")
            + REQUEUE
            + LEASE_GPUS,
            "train_mem_mb",
        )


# A choice is no more than a comparison of losses, so it has no cells of its own and stays with the study.
rule choose:
    """Measure the validation loss of a tuning's candidates, and choose one of them."""
    input:
        lambda wildcards: data_of(PLAN.tunings[wildcards.tuning].first),
        lambda wildcards: JOBS.markers_of(cell.id for cell in PLAN.tunings[wildcards.tuning].cells),
    output:
        JOBS.choices / "{tuning}.json",
    log:
        STUDY_DIR / "logs" / "{tuning}.choose.log",
    benchmark:
        STUDY_DIR / "logs" / "{tuning}.choose.tsv"
    wildcard_constraints:
        tuning="|".join(map(re.escape, PLAN.tunings)) or "none",
    threads: ASKED.threads("evaluate")
    resources:
        mem_mb=ASKED.memory("evaluate"),
        runtime=ASKED.minutes("evaluate"),
        gpu=ONE_GPU,
        nodes=1,
    params:
        settings=JOBS.choosing,
    shell:
        JOBS.watched(
            ENVIRONMENT
            + bench("choose", "--tuning {wildcards.tuning:q} --out {output:q}")
            + LEASE_GPUS,
            "evaluation_mem_mb",
        )
