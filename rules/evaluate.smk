# in:  results/runs/<cell id>/ of trained cells
# out: results/runs/<cell id>/evaluations/<stage>-<hash>.json, where the hash covers all that can change the numbers;
#          beside it <stage>-<hash>.<name>, where a stage keeps more than numbers
#      results/<study>/evaluation/: for each job an empty file that says that its cells are measured


def trained(wildcards):
    """Name the markers of a batch's training jobs, and its data: missing data is prepared if anything is measured."""
    cells = JOBS.evaluation[wildcards.batch]
    return [data_of(PLAN.cells[cells[0]]), *JOBS.markers_of(cells)]


# Stages in one group of a cluster's profile take turns: `--resources turn=1` holds within a group only.
resource_scopes:
    turn="local",


rule evaluate:
    """Target: all cells of the study are measured."""
    input:
        [
            JOBS.measured(batch, stage.name)
            for batch, cells in JOBS.evaluation.items()
            for stage in PLAN.cells[cells[0]].study.stages
        ],


# Each stage of the catalogue has its rule, since a site's profile can give resources to a rule by its name.
for stage in STAGES.values():

    rule:
        """Measure trained cells: a stage of the catalogue."""
        name:
            stage.name
        input:
            trained,
        output:
            STUDY_DIR / "evaluation" / f"{{batch}}.{stage.name}.done",
        log:
            STUDY_DIR / "logs" / f"{{batch}}.{stage.name}.log",
        benchmark:
            STUDY_DIR / "logs" / f"{{batch}}.{stage.name}.tsv"
        threads: ASKED.threads("evaluate")
        resources:
            mem_mb=ASKED.memory("evaluate"),
            runtime=ASKED.minutes("evaluate"),
            gpu=ONE_GPU if stage.gpu else 0,
            nodes=1,
            turn=1,
        params:
            stage=stage.command,
            settings=JOBS.settings(stage.name),
            cells=lambda wildcards: JOBS.evaluation[wildcards.batch],
        shell:
            JOBS.watched(
                ENVIRONMENT
                + bench("{params.stage}", "--cells {params.cells:q} --done {output:q}")
                + LEASE_GPUS,
                "evaluation_mem_mb",
            )
