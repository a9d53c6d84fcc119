# in:  text (paths.text, the Hugging Face hub, or a generated language)
# out: results/data/<data id>/: token bins, unigram counts, tokenizer, generated evaluation sets; meta.json last


rule data:
    input:
        DATA_DIR / "meta.json",


rule prepare:
    output:
        meta=paths.RESULTS / "data" / PLAN.data_id / "meta.json",
    log:
        paths.RESULTS / "data" / PLAN.data_id / "logs" / "prepare.log",
    benchmark:
        paths.RESULTS / "data" / PLAN.data_id / "logs" / "prepare.tsv"
    threads: RUN.data_threads
    resources:
        mem_mb=4000,
        runtime=RUN.train_minutes,
    params:
        protocol=protocol.DATA,
    shell:
        "{PYTHON} -m coupled_adam_bench prepare --plan {PLAN_FILE:q} --workers {threads} > {log:q} 2>&1"
