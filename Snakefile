# A study from text to tables:
#   snakemake --cores all                                               the demo
#   snakemake --cores all --configfile workflow/config/NAME.yaml        another study
#   snakemake --cores all --profile slurm --configfile ...              on a SLURM cluster
# Targets: all (default), plan, data, train, evaluate, tables, figures, report.

if "study" not in config:

    configfile: f"{workflow.basedir}/workflow/config/demo.yaml"


include: "rules/common.smk"
include: "rules/data.smk"
include: "rules/train.smk"
include: "rules/evaluate.smk"
include: "rules/theory.smk"
include: "rules/report.smk"


rule all:
    default_target: True
    input:
        STUDY_DIR / "report" / "index.html",
        STUDY_DIR / "manifest.json",
        STUDY_DIR / "mlflow.json",
