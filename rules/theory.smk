# in:  results/runs/<cell id>/ of a trained cell, and its data, of a study with `evaluation.theory`
# out: results/runs/<cell id>/theory.json, and an index of them for each job
# Each cell is trained once more, in one process: time and memory are about those of training.


if THEORY:

    rule theory:
        input:
            trained,
        output:
            index=STUDY_DIR / "evaluation" / "{batch}.theory.json",
        log:
            STUDY_DIR / "logs" / "{batch}.theory.log",
        benchmark:
            STUDY_DIR / "logs" / "{batch}.theory.tsv"
        threads: execution("train_threads")
        resources:
            mem_mb=execution("train_mem_mb"),
            runtime=execution("train_minutes"),
            gpu=one_gpu,
        params:
            protocol=protocol.THEORY,
            settings=settings(lambda found: found.protocol_settings()["theory"]),
            cells=lambda wildcards: BATCHES[wildcards.batch],
        shell:
            ENVIRONMENT + " {PYTHON} -m coupled_adam_bench theory --plan {PLAN_FILE:q}"
            " --cells {params.cells:q} --index {output.index:q} > {log:q} 2>&1"
