# in:  results/runs/<cell id>/ of trained cells
# out: results/runs/<cell id>/evaluations/<stage>-<hash>.json, where the hash covers all that can change the numbers;
#          beside it <stage>-<hash>.<name>, where a stage keeps more than numbers
#      results/<study>/evaluation/: for each job an empty file that says that its cells are measured


def trained(wildcards):
    """Name the markers of a batch's training jobs, and its data: missing data is prepared if anything is measured."""
    cells = BATCHES[wildcards.batch]
    return [data_of(PLAN.cells[cells[0]]), *(trained_marker(job) for job in dict.fromkeys(map(JOB_OF.get, cells)))]


# Stages in one group of a cluster's profile take turns: `--resources turn=1` holds within a group only.
resource_scopes:
    turn="local",


def settings_of(stage, study):
    """Return a hash of all that can change a stage's numbers; a change runs the stage again."""
    measurement = MEASUREMENTS.get((stage, study.name))
    return measurement and digest([measurement.stage.version, measurement.columns, measurement.settings])


def settings(stage):
    """Return that hash of all studies, or the function that gives that of a job's study."""
    return by_study(lambda study: settings_of(stage, study))


def wanted_markers():
    """Name the markers of all stages that the studies ask for."""
    return [
        measured_marker(batch, stage.name)
        for batch, cells in BATCHES.items()
        for stage in PLAN.cells[cells[0]].study.stages
    ]


rule evaluate:
    """Target: all cells of the study are measured."""
    input:
        wanted_markers(),


# The stages with a rule of their own. A site's profile can give resources to a rule by its name.
WITH_RULES = ("test_loss", "embeddings", "downstream", "theory")


rule evaluation:
    """Measure trained cells: any stage of the catalogue that has no rule of its own."""
    input:
        trained,
    output:
        STUDY_DIR / "evaluation" / "{batch}.{stage}.done",
    log:
        STUDY_DIR / "logs" / "{batch}.{stage}.log",
    benchmark:
        STUDY_DIR / "logs" / "{batch}.{stage}.tsv"
    wildcard_constraints:
        stage="|".join(stage for stage in STAGES if stage not in WITH_RULES) or "none",
    threads: execution("evaluation_threads")
    resources:
        mem_mb=memory("evaluation_mem_mb"),
        runtime=growing("evaluation_minutes"),
        gpu=ONE_GPU,
        nodes=1,
        turn=1,
    params:
        stage=lambda wildcards: wildcards.stage.replace("_", "-"),
        settings=lambda wildcards: settings_of(wildcards.stage, study_of_job(wildcards)),
        cells=lambda wildcards: BATCHES[wildcards.batch],
    shell:
        watched(
            ENVIRONMENT + " {PYTHON:q} -m coupled_adam_bench {params.stage} --plan {PLAN_FILE:q}"
            " --cells {params.cells:q} --done {output:q}" + LEASE_GPUS,
            "evaluation_mem_mb, of the stage theory train_mem_mb",
        )


use rule evaluation as test_loss with:
    output:
        STUDY_DIR / "evaluation" / "{batch}.test_loss.done",
    log:
        STUDY_DIR / "logs" / "{batch}.test_loss.log",
    benchmark:
        STUDY_DIR / "logs" / "{batch}.test_loss.tsv"
    params:
        stage="test-loss",
        settings=settings("test_loss"),
        cells=lambda wildcards: BATCHES[wildcards.batch],


use rule evaluation as embeddings with:
    output:
        STUDY_DIR / "evaluation" / "{batch}.embeddings.done",
    log:
        STUDY_DIR / "logs" / "{batch}.embeddings.log",
    benchmark:
        STUDY_DIR / "logs" / "{batch}.embeddings.tsv"
    resources:
        mem_mb=memory("evaluation_mem_mb"),
        runtime=growing("evaluation_minutes"),
        gpu=0,
        turn=1,
    params:
        stage="embeddings",
        settings=settings("embeddings"),
        cells=lambda wildcards: BATCHES[wildcards.batch],


use rule evaluation as downstream with:
    output:
        STUDY_DIR / "evaluation" / "{batch}.downstream.done",
    log:
        STUDY_DIR / "logs" / "{batch}.downstream.log",
    benchmark:
        STUDY_DIR / "logs" / "{batch}.downstream.tsv"
    params:
        stage="downstream",
        settings=settings("downstream"),
        cells=lambda wildcards: BATCHES[wildcards.batch],


# This stage trains each cell once more in one process, so it needs about the time and the memory of training.
use rule evaluation as theory with:
    output:
        STUDY_DIR / "evaluation" / "{batch}.theory.done",
    log:
        STUDY_DIR / "logs" / "{batch}.theory.log",
    benchmark:
        STUDY_DIR / "logs" / "{batch}.theory.tsv"
    threads: execution("train_threads")
    resources:
        mem_mb=training_memory(),
        runtime=training_minutes,
        gpu=ONE_GPU,
        nodes=1,
    params:
        stage="theory",
        settings=settings("theory"),
        cells=lambda wildcards: BATCHES[wildcards.batch],
