# in:  text (paths.text, the Hugging Face hub, or a generated language)
# out: results/data/<data id>/: token bins, unigram counts, tokenizer, generated evaluation sets; meta.json last
#      results/<study>/data/: an empty file that says that the data are prepared
#      paths.hub_mirror, paths.word_similarity: what `fetch` downloads
# Only the empty file is an output: Snakemake deletes those of a job that it starts or that has failed, and data belong
# to all studies that share them.


rule data:
    """Target: the data of the study."""
    input:
        [JOBS.prepared(data) for data in PLAN.data_ids],


localrules:
    fetch,


rule fetch:
    """Target: download all that the study needs from outside, on a machine with a network."""
    shell:
        bench("fetch")


rule prepare:
    """Turn text into token bins."""
    output:
        STUDY_DIR / "data" / "{data}.done",
    log:
        STUDY_DIR / "logs" / "{data}.prepare.log",
    benchmark:
        STUDY_DIR / "logs" / "{data}.prepare.tsv"
    # Before any training, else data that need all processors wait for the longest one.
    priority: 1e9
    threads: ASKED.threads("prepare")
    resources:
        mem_mb=ASKED.memory("prepare"),
        runtime=ASKED.minutes("prepare"),
    params:
        version=versions.DATA,
    shell:
        JOBS.watched(
            bench("prepare", "--data {wildcards.data:q} --workers {threads} --done {output:q}"),
            "data_threads",
        )
