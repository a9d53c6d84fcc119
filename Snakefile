# A study from text to tables:
#   snakemake --cores all                                               the demo
#   snakemake --cores all --configfile workflow/config/NAME.yaml        another study
#   snakemake --cores all --profile slurm --configfile ...              on a SLURM cluster
# Targets: all (default), plan, rehearse, fetch, data, train, evaluate, tables, figures, report.

if not workflow.configfiles:

    configfile: f"{workflow.current_basedir}/workflow/config/demo.yaml"


include: "rules/common.smk"
include: "rules/data.smk"
include: "rules/train.smk"
include: "rules/evaluate.smk"
include: "rules/report.smk"
include: "rules/start.smk"


rule all:
    """Target: everything, from data to report."""
    default_target: True
    input:
        [] if PARTIAL else rules.train.input,
        [] if PARTIAL else rules.evaluate.input,
        rules.report.input,
        rules.track.output,
