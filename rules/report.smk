# in:  the markers of all evaluations, and the run folders of the cells
# out: results/<study>/: results.csv, tests.csv and the other statistics, tables/, figures/, manifest.json, report/index.html,
#      and the marker report.done
#      MLflow

import time

from coupled_adam_bench.report.figures import FIGURE_ENDINGS, FIGURES, figure_names
from coupled_adam_bench.store.paths import IMPORT_SUMMARY
from coupled_adam_bench.study.catalogue.contents import STATISTICS
from coupled_adam_bench.study.catalogue.tables import SETUP_TABLES, TABLE_ENDINGS
from coupled_adam_bench.study.plan.plug_ins import check_names, code_of_report


localrules:
    plan,
    rehearse,
    report_of_study,
    track,


TABLES = list(LAYOUT.tables)
TABLE_FILES = expand(STUDY_DIR / "tables" / "{table}.{format}", table=TABLES, format=TABLE_ENDINGS)
TABLE_FILES += expand(STUDY_DIR / "tables" / "{name}.tex", name=SETUP_TABLES if TABLES else [])
FIGURE_FILES = expand(
    STUDY_DIR / "figures" / "{figure}.{ending}", figure=figure_names(PLAN), ending=FIGURE_ENDINGS
)
# Of plug-ins only what identifies their code is read here; `try-code` imports them.
with errors_of_users():
    check_names(PLAN, ["results.csv", *(each.file for each in STATISTICS)], FIGURES)
    PLUG_INS = code_of_report(PLAN)


# A hash of what the results show: all of the plan but how and where it is computed, what was measured, and the version of
# the statistics. The manifest notes it, so that what was made from another plan is told from these.
MADE_FOR = digest(
    {
        "title": PLAN.title,
        "studies": [
            study.model_dump(
                mode="json", exclude={"budget", "evaluation", "execution", "paths", "stated"}
            )
            for study in PLAN.studies.values()
        ],
        "stated": PLAN.stated and PLAN.stated.model_dump(mode="json"),
        "tables": [vars(table) for table in LAYOUT.tables.values()],
        "cells": CELLS,
        "partial": PARTIAL,
        "statistics": versions.STATISTICS,
        "measurements": [
            [
                stage,
                study,
                measurement
                and [measurement.stage.version, measurement.columns, measurement.settings],
            ]
            for (stage, study), measurement in MEASUREMENTS.items()
        ],
    }
    | ({"plug_ins": PLUG_INS} if PLUG_INS else {})
)


def captioned(files, caption, category="Results"):
    """Mark outputs that people look at: `snakemake --report` shows them with a caption, in a category.

    As they are marked with `update`, Snakemake leaves them alone before the job, and restores them if it fails.
    """
    return update(report(files, category=category, labels={"contents": caption}))


# A parameter that is new each time: the plan is computed anew whenever it is asked for.
rule plan:
    """Say what the study takes, and what is done."""
    output:
        text=STUDY_DIR / "plan.txt",
    params:
        asked=time.time(),
    shell:
        bench("describe", "--out {output.text:q}")


rule rehearse:
    """Target: rehearse the study without a GPU: every stage runs on a miniature."""
    params:
        templates=TEMPLATES,
    shell:
        bench("rehearse", "--templates {params.templates:q}")


def measured_so_far():
    """Name the evaluations that are there."""
    now = JOBS.chosen()
    return [
        measurement.find(cell.id)
        for (stage, study), measurement in MEASUREMENTS.items()
        for cell in now.cells_of(now.studies[study])
        if measurement is not None and measurement.is_there(cell.id)
    ]


# These markers stand for the histories and the evaluations of the runs: the runs themselves are no outputs.
RUN_MARKERS = measured_so_far() if PARTIAL else [*rules.train.input, *rules.evaluate.input]


# The manifest and the passes over the text read the data. With `partial` they say what is not prepared.
DATA_MARKERS = [] if PARTIAL else [ancient(marker) for marker in rules.data.input]


# Choices that are there: all of them, or with `partial` those that have been made.
CHOSEN = [
    JOBS.choice(tuning) for tuning in PLAN.tunings if not PARTIAL or JOBS.choice(tuning).exists()
]
REPORTED = [*DATA_MARKERS, *RUN_MARKERS, *CHOSEN]


# The parameter makes all of it anew after a change of the plan, and the templates after one of theirs. The command makes the
# files beside and moves them in at its end. Until it has, the marker is missing, so that the next start makes them anew.
rule report_of_study:
    """Write all that shows the results: statistics, tables, figures, the record behind them, and the page."""
    input:
        REPORTED,
        templates=sorted(path for path in Path(TEMPLATES).glob("*/*")),
    output:
        captioned(
            STUDY_DIR / "results.csv",
            "Every number that was measured, with the cell that it belongs to.",
        ),
        [captioned(STUDY_DIR / each.file, each.caption) for each in STATISTICS if each.is_of(PLAN)],
        [
            captioned(
                STUDY_DIR / f"{each.name}.csv", f"A statistic of the study's own, {each.path}."
            )
            for each in PLAN.statistics.files
        ],
        captioned(
            TABLE_FILES,
            "A table of the study: means, standard deviations, and in bold what is better.",
            "Tables",
        ),
        captioned(FIGURE_FILES, "A figure of the study.", "Figures"),
        captioned(STUDY_DIR / paths.MANIFEST, "The record behind the numbers.", "Report"),
        captioned(
            STUDY_DIR / "report" / "index.html", "The report of the study on one page.", "Report"
        ),
        marker=STUDY_DIR / paths.REPORTED,
    log:
        STUDY_DIR / "logs" / "report.log",
    params:
        made_for=MADE_FOR,
        flags="--partial" if PARTIAL else "",
    shell:
        bench(
            "report",
            f"--templates {verbatim(TEMPLATES)} {{params.flags}} --made-for {{params.made_for}} > {{log:q}} 2>&1",
        )


# What was made from another plan has no marker (rules/start.smk), so each of these targets asks for it. They ask for the
# choices too: Snakemake makes no missing file again for the sake of a report that is there.
rule tables:
    """Target: results, tests and tables of the study."""
    input:
        CHOSEN,
        rules.report_of_study.output.marker,
        TABLE_FILES,


rule figures:
    """Target: the figures of the study."""
    input:
        CHOSEN,
        rules.report_of_study.output.marker,
        FIGURE_FILES,


rule report:
    """Target: the report of the study."""
    input:
        CHOSEN,
        rules.report_of_study.output,


# A server that is away fails no study: the summary notes it, and the next start imports again (rules/start.smk).
rule track:
    """Copy the study into MLflow, with its tables, figures and report."""
    input:
        RUN_MARKERS,
        rules.report_of_study.output,
    output:
        STUDY_DIR / IMPORT_SUMMARY,
    log:
        STUDY_DIR / "logs" / "mlflow.log",
    shell:
        bench("track", "--may-wait --out {output:q} > {log:q} 2>&1")
