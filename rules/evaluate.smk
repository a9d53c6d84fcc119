# in:  results/runs/<cell id>/ of a trained cell
# out: results/runs/<cell id>/{test_loss,embeddings,lm_eval}.json, and an index of them for each job:
#      an index is whole or absent, while the files of the cells that succeeded outlive a job that fails.


def trained(wildcards):
    return expand(RUNS / "{cell}" / "run.json", cell=BATCHES[wildcards.batch])


def one_gpu(wildcards):
    return min(part_of(wildcards).study.execution.gpus, 1)


def settings(choose):
    """Return the function that gives a hash of what ``choose`` takes of a job's evaluation: a change runs it again."""
    return lambda wildcards: digest(choose(part_of(wildcards).study.evaluation))


rule evaluate:
    input:
        expand(
            STUDY_DIR / "evaluation" / "{batch}.{stage}.json",
            batch=BATCHES,
            stage=("test_loss", "embeddings", "lm_eval"),
        ),
        expand(STUDY_DIR / "evaluation" / "{batch}.theory.json", batch=THEORY),


rule test_loss:
    input:
        trained,
    output:
        index=STUDY_DIR / "evaluation" / "{batch}.test_loss.json",
    log:
        STUDY_DIR / "logs" / "{batch}.test_loss.log",
    benchmark:
        STUDY_DIR / "logs" / "{batch}.test_loss.tsv"
    threads: execution("evaluation_threads")
    resources:
        mem_mb=execution("evaluation_mem_mb"),
        runtime=execution("evaluation_minutes"),
        gpu=one_gpu,
    params:
        protocol=protocol.TEST_LOSS,
        settings=settings(lambda found: found.protocol_settings()["test_loss"]),
        cells=lambda wildcards: BATCHES[wildcards.batch],
    shell:
        ENVIRONMENT + " {PYTHON} -m coupled_adam_bench test-loss --plan {PLAN_FILE:q}"
        " --cells {params.cells:q} --index {output.index:q} > {log:q} 2>&1"


rule embeddings:
    input:
        trained,
    output:
        index=STUDY_DIR / "evaluation" / "{batch}.embeddings.json",
    log:
        STUDY_DIR / "logs" / "{batch}.embeddings.log",
    benchmark:
        STUDY_DIR / "logs" / "{batch}.embeddings.tsv"
    threads: execution("evaluation_threads")
    resources:
        mem_mb=execution("evaluation_mem_mb"),
        runtime=execution("evaluation_minutes"),
    params:
        protocol=protocol.EMBEDDINGS,
        settings=settings(
            lambda found: [found.model_dump(mode="json")["word_similarity"], found.protocol_settings()["embeddings"]]
        ),
        cells=lambda wildcards: BATCHES[wildcards.batch],
    shell:
        ENVIRONMENT + " {PYTHON} -m coupled_adam_bench embeddings --plan {PLAN_FILE:q}"
        " --cells {params.cells:q} --index {output.index:q} > {log:q} 2>&1"


rule downstream:
    input:
        trained,
    output:
        index=STUDY_DIR / "evaluation" / "{batch}.lm_eval.json",
    log:
        STUDY_DIR / "logs" / "{batch}.lm_eval.log",
    benchmark:
        STUDY_DIR / "logs" / "{batch}.lm_eval.tsv"
    threads: execution("evaluation_threads")
    resources:
        mem_mb=execution("evaluation_mem_mb"),
        runtime=execution("evaluation_minutes"),
        gpu=one_gpu,
    params:
        protocol=protocol.DOWNSTREAM,
        settings=settings(lambda found: found.downstream.model_dump(mode="json")),
        cells=lambda wildcards: BATCHES[wildcards.batch],
    shell:
        ENVIRONMENT + " {PYTHON} -m coupled_adam_bench downstream --plan {PLAN_FILE:q}"
        " --cells {params.cells:q} --index {output.index:q} > {log:q} 2>&1"
