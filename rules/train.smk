# in:  results/data/<data id>/
# out: results/runs/<cell id>/: cell.json, history.jsonl, checkpoints/, model/; run.json last
#      results/trunks/<trunk id>/: what cells of schedule wsd share before their decay; branch-<step>.json last
# Only run.json and branch-*.json are outputs: Snakemake deletes those of a failed job, and checkpoints must outlive it.


rule train:
    input:
        expand(RUNS / "{cell}" / "run.json", cell=CELLS),


# A warning two minutes before SLURM's time limit: training writes a checkpoint and a retry goes on from it.
WARNING = "'--signal=TERM@120'"
TRAIN = ENVIRONMENT + " {PYTHON} -m coupled_adam_bench train --plan {PLAN_FILE:q} --cells {output:q} > {log:q} 2>&1"

TRAINING = batches("train_cells_per_job")
ALONE = [job for job in TRAINING if job in PLAN.cells]
TRUNKS = PLAN.trunks
# Where cells leave their trunks, as (trunk, step).
BRANCH_OF = {cell: (trunk, part.steps) for trunk in TRUNKS for cell, part in TRUNKS[trunk].parts.items()}


def branch_files(branches, products):
    """Name branches as inputs of a job; a trunk that grows is no reason to make products anew that are there."""
    files = [paths.branch_file(*branch) for branch in sorted(set(branches))]
    return [ancient(file) for file in files] if all(product.exists() for product in products) else files


def branches_of(cells):
    """Name the branches with which cells begin, of those that share a trunk."""
    branches = [BRANCH_OF[cell] for cell in cells if cell in BRANCH_OF]
    return branch_files(branches, [RUNS / cell / "run.json" for cell in cells])


def branch_before(wildcards):
    """Name the branch from which a trunk goes on."""
    trunk, end = wildcards.trunk, int(wildcards.step)
    before = [(trunk, step) for step in TRUNKS[trunk].branches if step < end]
    return branch_files(before[-1:], [paths.branch_file(trunk, end)])


def data_of(cell):
    return DATA / cell.data_id / "meta.json"


# A job for each branch, so that the cells of a small D need not wait for the end of the trunk.
rule train_trunk:
    input:
        lambda wildcards: data_of(TRUNKS[wildcards.trunk].run),
        branch_before,
    output:
        paths.trunk_dir("{trunk}") / "branch-{step}.json",
    log:
        paths.trunk_dir("{trunk}") / "logs" / "branch-{step}.log",
    benchmark:
        paths.trunk_dir("{trunk}") / "logs" / "branch-{step}.tsv"
    threads: execution("training_threads")
    resources:
        mem_mb=execution("train_mem_mb"),
        runtime=execution("train_minutes"),
        gpu=execution("gpus"),
        slurm_extra=WARNING,
    params:
        protocol=protocol.TRAIN,
    shell:
        ENVIRONMENT + " {PYTHON} -m coupled_adam_bench train-trunk --plan {PLAN_FILE:q} --branches {output:q}"
        " > {log:q} 2>&1"


if ALONE:

    rule train_cell:
        input:
            lambda wildcards: data_of(PLAN.cells[wildcards.cell]),
            lambda wildcards: branches_of([wildcards.cell]),
        output:
            RUNS / "{cell}" / "run.json",
        log:
            RUNS / "{cell}" / "logs" / "train.log",
        benchmark:
            RUNS / "{cell}" / "logs" / "train.tsv"
        wildcard_constraints:
            cell="|".join(map(re.escape, ALONE)),
        threads: execution("training_threads")
        resources:
            mem_mb=execution("train_mem_mb"),
            runtime=execution("train_minutes"),
            gpu=execution("gpus"),
            slurm_extra=WARNING,
        params:
            protocol=protocol.TRAIN,
        shell:
            TRAIN


# Should one cell of a job crash, the others come back from their last checkpoints in seconds.
for batch, cells in TRAINING.items():
    if batch not in ALONE:
        RUN = PLAN.part_of(cells).study.execution

        rule:
            name:
                f"train_{batch}"
            input:
                data_of(PLAN.cells[cells[0]]),
                branches_of(cells),
            output:
                expand(RUNS / "{cell}" / "run.json", cell=cells),
            log:
                STUDY_DIR / "logs" / f"train_{batch}.log",
            benchmark:
                STUDY_DIR / "logs" / f"train_{batch}.tsv"
            # The longest first, so that no core waits for the last one.
            priority: sum(PLAN.cells[cell].n_tokens * PLAN.cells[cell].n_params for cell in cells)
            threads: RUN.training_threads
            resources:
                mem_mb=RUN.train_mem_mb,
                runtime=RUN.train_minutes,
                gpu=RUN.gpus,
                slurm_extra=WARNING,
            params:
                protocol=protocol.TRAIN,
            shell:
                TRAIN
