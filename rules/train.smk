# in:  results/data/<data id>/
# out: results/runs/<cell id>/: cell.json, history.jsonl, checkpoints/, model/; run.json last
# Only run.json is an output: Snakemake deletes the outputs of a failed job, and checkpoints must outlive it.


rule train:
    input:
        expand(RUNS / "{cell}" / "run.json", cell=CELLS),


# A warning two minutes before SLURM's time limit: training writes a checkpoint and a retry goes on from it.
WARNING = "'--signal=TERM@120'"
TRAIN = ENVIRONMENT + " {PYTHON} -m coupled_adam_bench train --plan {PLAN_FILE:q} --cells {output:q} > {log:q} 2>&1"

if RUN.train_cells_per_job == 1:

    rule train_cell:
        input:
            DATA_DIR / "meta.json",
        output:
            RUNS / "{cell}" / "run.json",
        log:
            RUNS / "{cell}" / "logs" / "train.log",
        benchmark:
            RUNS / "{cell}" / "logs" / "train.tsv"
        threads: RUN.train_threads
        resources:
            mem_mb=RUN.train_mem_mb,
            runtime=RUN.train_minutes,
            gpu=RUN.gpus,
            slurm_extra=WARNING,
        params:
            protocol=protocol.TRAIN,
        shell:
            TRAIN

else:

    # Should one cell of a job crash, the others come back from their last checkpoints in seconds.
    for batch, cells in batches(RUN.train_cells_per_job).items():

        rule:
            name:
                f"train_{batch}"
            input:
                DATA_DIR / "meta.json",
            output:
                expand(RUNS / "{cell}" / "run.json", cell=cells),
            log:
                STUDY_DIR / "logs" / f"train_{batch}.log",
            benchmark:
                STUDY_DIR / "logs" / f"train_{batch}.tsv"
            # The longest first, so that no core waits for the last one.
            priority: sum(PLAN.cells[cell].n_tokens * PLAN.cells[cell].n_params for cell in cells)
            threads: RUN.train_threads
            resources:
                mem_mb=RUN.train_mem_mb,
                runtime=RUN.train_minutes,
                gpu=RUN.gpus,
                slurm_extra=WARNING,
            params:
                protocol=protocol.TRAIN,
            shell:
                TRAIN
