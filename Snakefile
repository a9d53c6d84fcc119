# A study from text to tables:
#   snakemake --cores all                                               the demo
#   snakemake --cores all --configfile workflow/config/NAME.yaml        another study
#   snakemake --cores all --profile slurm --configfile ...              on a SLURM cluster
# Targets: all (default), plan, rehearse, fetch, data, train, evaluate, tables, figures, report.

if not workflow.configfiles:

    configfile: f"{workflow.basedir}/workflow/config/demo.yaml"


include: "rules/common.smk"
include: "rules/data.smk"
include: "rules/train.smk"
include: "rules/evaluate.smk"
include: "rules/report.smk"
include: "rules/start.smk"


# Every file of the study by name, checksums too: Snakemake makes a missing one anew only if it is asked for.
rule all:
    """Target: everything, from data to report."""
    default_target: True
    input:
        [] if PARTIAL else rules.train.input,
        [] if PARTIAL else rules.evaluate.input,
        rules.tables.input,
        STATISTICS_FILES,
        STATED_FILE,
        rules.figures.input,
        rules.report.input,
        TUNING_FILES,
        rules.manifest.input.given,
        rules.manifest.output,
        rules.report_page.output,
        rules.track.output,
