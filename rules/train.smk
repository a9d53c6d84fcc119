# in:  results/data/<data id>/
# out: results/runs/<cell id>/: cell.json, history.jsonl, checkpoints/, model/; run.json last
# Only run.json is an output: Snakemake deletes the outputs of a failed job, and checkpoints must outlive it.


rule train:
    input:
        expand(RUNS / "{cell}" / "run.json", cell=CELLS),


rule train_cell:
    input:
        DATA_DIR / "meta.json",
    output:
        run=RUNS / "{cell}" / "run.json",
    log:
        RUNS / "{cell}" / "logs" / "train.log",
    benchmark:
        RUNS / "{cell}" / "logs" / "train.tsv"
    threads: RUN.train_threads
    resources:
        mem_mb=RUN.train_mem_mb,
        runtime=RUN.train_minutes,
        gpu=RUN.gpus,
        # A warning two minutes before the time limit: training writes a checkpoint and a retry goes on from it.
        slurm_extra="'--signal=TERM@120'",
    params:
        protocol=protocol.TRAIN,
    shell:
        "OMP_NUM_THREADS={threads} {PYTHON} -m coupled_adam_bench train --plan {PLAN_FILE:q} --cell {wildcards.cell:q}"
        " > {log:q} 2>&1"
