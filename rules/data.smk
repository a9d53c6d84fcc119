# in:  text (paths.text, the Hugging Face hub, or a generated language)
# out: results/data/<data id>/: token bins, unigram counts, tokenizer, generated evaluation sets; meta.json last


rule data:
    input:
        expand(DATA / "{data}" / "meta.json", data=PLAN.data_ids),


rule prepare:
    output:
        meta=DATA / "{data}" / "meta.json",
    log:
        DATA / "{data}" / "logs" / "prepare.log",
    benchmark:
        DATA / "{data}" / "logs" / "prepare.tsv"
    threads: execution("data_threads")
    resources:
        mem_mb=4000,
        runtime=execution("train_minutes"),
    params:
        protocol=protocol.DATA,
    shell:
        "{PYTHON} -m coupled_adam_bench prepare --plan {PLAN_FILE:q} --data {wildcards.data:q} --workers {threads}"
        " > {log:q} 2>&1"
