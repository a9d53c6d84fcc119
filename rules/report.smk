# in:  the markers of all evaluations, and the run folders of the cells
# out: results/<study>/: results.csv -> tests.csv, other statistics -> tables/, figures/ -> manifest.json -> report/index.html
#      MLflow
#      results/<study>/checksums/: what each stage wrote, which those that read it compare

import time

from coupled_adam_bench.study.catalog.tables import SETUP_TABLES, TABLE_ENDINGS
from coupled_adam_bench.store.outputs import IMPORT_SUMMARY
from coupled_adam_bench.report.figures import FIGURE_ENDINGS, figures_of


localrules:
    plan,
    rehearse,
    collect,
    tuning,
    tests,
    statistics,
    stated,
    tables_of_study,
    figures_of_study,
    manifest,
    report_page,
    track,


TABLES = list(LAYOUT.tables)
TABLE_FILES = expand(STUDY_DIR / "tables" / "{table}.{format}", table=TABLES, format=TABLE_ENDINGS)
if TABLES:
    TABLE_FILES += expand(STUDY_DIR / "tables" / "{name}.tex", name=SETUP_TABLES)
FIGURE_FILES = expand(
    STUDY_DIR / "figures" / "{figure}.{ending}",
    figure=figures_of(PLAN),
    ending=FIGURE_ENDINGS,
)
# A hash of what the results show: all of the plan but how and where it is computed, and what was measured. The checksums
# of all stages name it, so that what was made from another plan is told from these.
MADE_FOR = digest(
    {
        "title": PLAN.title,
        "studies": [
            study.model_dump(mode="json", exclude={"budget", "evaluation", "execution", "paths", "stated"})
            for study in PLAN.studies.values()
        ],
        "stated": PLAN.stated and PLAN.stated.to_json(),
        "tables": [vars(table) for table in LAYOUT.tables.values()],
        "cells": CELLS,
        "partial": PARTIAL,
        "measurements": [
            [stage, study, measurement and [measurement.stage.version, measurement.columns, measurement.settings]]
            for (stage, study), measurement in MEASUREMENTS.items()
        ],
    }
)


def captioned(files, caption, category):
    """Mark outputs that people look at: `snakemake --report` shows them with a caption, in a category."""
    return report(files, caption=f"{TEMPLATES}/captions/{caption}.rst", category=category)


# A parameter that is new each time: the plan is computed anew whenever it is asked for.
rule plan:
    """Say what the study takes, and what is done."""
    output:
        text=STUDY_DIR / "plan.txt",
        estimate=STUDY_DIR / "estimate.json",
        checksums=checksums("plan"),
    params:
        asked=time.time(),
    shell:
        "{PYTHON:q} -m coupled_adam_bench describe --plan {PLAN_FILE:q} --out {output.text:q} --json {output.estimate:q}"
        " --checksums {output.checksums:q} --made-for {MADE_FOR}"


rule rehearse:
    """Target: rehearse the study without a GPU: at full size on fake tensors, then every stage on a miniature."""
    params:
        templates=TEMPLATES,
    shell:
        "{PYTHON:q} -m coupled_adam_bench rehearse --plan {PLAN_FILE:q} --templates {params.templates:q}"


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


# The manifest and the statistics of seeds read the data. With `partial` they say what is not prepared.
DATA_MARKERS = [] if PARTIAL else [ancient(marker) for marker in rules.data.input]


rule collect:
    """Gather the evaluations of all cells into one long table."""
    input:
        measured_so_far() if PARTIAL else rules.evaluate.input,
    output:
        results=captioned(STUDY_DIR / "results.csv", "results", "Results"),
        checksums=checksums("collect"),
    log:
        STUDY_DIR / "logs" / "collect.log",
    params:
        made_for=MADE_FOR,
        flags="--partial" if PARTIAL else "",
    shell:
        "{PYTHON:q} -m coupled_adam_bench collect --plan {PLAN_FILE:q} {params.flags} --out {output.results:q}"
        " --checksums {output.checksums:q} --made-for {MADE_FOR} > {log:q} 2>&1"


# Choices that are there: all of them, or with `partial` those that have been made.
CHOSEN = [JOBS.choice(tuning) for tuning in PLAN.tunings if not PARTIAL or JOBS.choice(tuning).exists()]
TUNING_FILES = [STUDY_DIR / paths.TUNING_CSV] if PLAN.tunings else []
TUNING_CHECKSUMS = [checksums("tuning")] if PLAN.tunings else []


rule tuning:
    """Gather the choices of all tunings, and the losses behind them."""
    input:
        CHOSEN,
    output:
        tuning=captioned(STUDY_DIR / paths.TUNING_CSV, "tuning", "Results"),
        checksums=checksums("tuning"),
    log:
        STUDY_DIR / "logs" / "tuning.log",
    shell:
        "{PYTHON:q} -m coupled_adam_bench tuning --plan {PLAN_FILE:q} --out {output.tuning:q}"
        " --checksums {output.checksums:q} --made-for {MADE_FOR} > {log:q} 2>&1"


rule tests:
    """Compare the optimizers of every table."""
    input:
        results=rules.collect.output.results,
        given=rules.collect.output.checksums,
    output:
        tests=captioned(STUDY_DIR / "tests.csv", "tests", "Results"),
        checksums=checksums("tests"),
    log:
        STUDY_DIR / "logs" / "tests.log",
    params:
        version=versions.STATISTICS,
        settings=digest(PLAN.statistics.model_dump(mode="json")),
    shell:
        "{PYTHON:q} -m coupled_adam_bench tests --plan {PLAN_FILE:q} --results {input.results:q} --out {output.tests:q}"
        " --given {input.given:q} --checksums {output.checksums:q} --made-for {MADE_FOR} > {log:q} 2>&1"


rule statistics:
    """Compute what stands beside the tests: pairs on one text, summaries, trends, power, shared text, noise, a target."""
    input:
        DATA_MARKERS,
        RUN_MARKERS,
        results=rules.collect.output.results,
        given=rules.collect.output.checksums,
    output:
        paired=captioned(STUDY_DIR / "paired.csv", "paired", "Results"),
        summary=captioned(STUDY_DIR / "summary.csv", "summary", "Results"),
        trend=captioned(STUDY_DIR / "trend.csv", "trend", "Results"),
        crossings=captioned(STUDY_DIR / "crossings.csv", "trend", "Results"),
        power=captioned(STUDY_DIR / "power.csv", "power", "Results"),
        seeds=captioned(STUDY_DIR / "seeds.csv", "seeds", "Results"),
        noise=captioned(STUDY_DIR / "noise.csv", "noise", "Results"),
        target=captioned(STUDY_DIR / "target.csv", "target", "Results"),
        checksums=checksums("statistics"),
    log:
        STUDY_DIR / "logs" / "statistics.log",
    params:
        version=versions.STATISTICS,
        target=PLAN.statistics.target_loss,
        folder=STUDY_DIR,
    shell:
        "{PYTHON:q} -m coupled_adam_bench statistics --plan {PLAN_FILE:q} --results {input.results:q}"
        " --out {params.folder:q} --given {input.given:q} --checksums {output.checksums:q}"
        " --made-for {MADE_FOR} > {log:q} 2>&1"


# Of a study with a stated plan. The SHA-256 of its file stands for it.
rule stated:
    """Test the hypotheses of the stated plan at the stated looks."""
    input:
        results=rules.collect.output.results,
        given=rules.collect.output.checksums,
    output:
        stated=captioned(STUDY_DIR / "stated.csv", "stated", "Results"),
        checksums=checksums("stated"),
    log:
        STUDY_DIR / "logs" / "stated.log",
    params:
        version=versions.STATISTICS,
        sha256=PLAN.stated.sha256 if PLAN.stated else "",
    shell:
        "{PYTHON:q} -m coupled_adam_bench stated --plan {PLAN_FILE:q} --results {input.results:q}"
        " --out {output.stated:q} --given {input.given:q} --checksums {output.checksums:q}"
        " --made-for {MADE_FOR} > {log:q} 2>&1"


# The stages of reporting whose files manifest and report show: a study may have no table, and no stated plan.
SHOWN = [
    stage
    for stage, there in {
        "collect": True,
        "tests": True,
        "statistics": True,
        "stated": PLAN.stated is not None,
        "tuning": bool(PLAN.tunings),
        "tables": bool(TABLES),
        "figures": True,
    }.items()
    if there
]
STATISTICS_FILES = [STUDY_DIR / name for name in paths.STATISTICS_FILES]
STATED_FILE = rules.stated.output.stated if PLAN.stated else []


rule tables:
    """Target: results, tests and tables of the study."""
    input:
        CHOSEN,
        rules.collect.output,
        rules.tests.output,
        TABLE_FILES,


rule tables_of_study:
    """Print the tables in LaTeX, HTML, Markdown and CSV."""
    input:
        results=rules.collect.output.results,
        tests=rules.tests.output.tests,
        given=[rules.collect.output.checksums, rules.tests.output.checksums],
        templates=expand(
            "{folder}/{file}",
            folder=TEMPLATES,
            file=(
                "latex/table.tex.j2",
                "latex/tabular.tex.j2",
                "latex/fit.tex.j2",
                "latex/setup.tex.j2",
                "html/table.html.j2",
                "html/table_page.html.j2",
                "html/style.css",
            ),
        ),
    output:
        tables=captioned(TABLE_FILES, "tables", "Tables"),
        checksums=checksums("tables"),
    log:
        STUDY_DIR / "logs" / "tables.log",
    params:
        folder=STUDY_DIR / "tables",
    shell:
        "{PYTHON:q} -m coupled_adam_bench tables --plan {PLAN_FILE:q} --results {input.results:q} --tests {input.tests:q}"
        " --templates {TEMPLATES:q} --out {params.folder:q} --given {input.given:q}"
        " --checksums {output.checksums:q} --made-for {MADE_FOR} > {log:q} 2>&1"


rule figures:
    """Target: the figures of the study."""
    input:
        CHOSEN,
        FIGURE_FILES,


rule figures_of_study:
    """Draw the figures."""
    input:
        RUN_MARKERS,
        TUNING_FILES,
        results=rules.collect.output.results,
        noise=rules.statistics.output.noise,
        given=[rules.collect.output.checksums, rules.statistics.output.checksums, *TUNING_CHECKSUMS],
    output:
        figures=captioned(FIGURE_FILES, "figures", "Figures"),
        checksums=checksums("figures"),
    log:
        STUDY_DIR / "logs" / "figures.log",
    params:
        folder=STUDY_DIR / "figures",
    shell:
        "{PYTHON:q} -m coupled_adam_bench figures --plan {PLAN_FILE:q} --results {input.results:q}"
        " --out {params.folder:q} --given {input.given:q} --checksums {output.checksums:q}"
        " --made-for {MADE_FOR} > {log:q} 2>&1"


rule manifest:
    """Write the record behind the numbers: versions, checksums, and how every cell was trained."""
    input:
        DATA_MARKERS,
        RUN_MARKERS,
        results=rules.collect.output.results,
        tests=rules.tests.output.tests,
        statistics=STATISTICS_FILES,
        tables=TABLE_FILES,
        figures=FIGURE_FILES,
        stated=STATED_FILE,
        given=[checksums(stage) for stage in SHOWN],
    output:
        manifest=captioned(STUDY_DIR / "manifest.json", "manifest", "Report"),
        checksums=checksums("manifest"),
    log:
        STUDY_DIR / "logs" / "manifest.log",
    shell:
        "{PYTHON:q} -m coupled_adam_bench manifest --plan {PLAN_FILE:q} --given {input.given:q}"
        " --checksums {output.checksums:q} --made-for {MADE_FOR} > {log:q} 2>&1"


rule report:
    """Target: the report of the study."""
    input:
        CHOSEN,
        STUDY_DIR / "report" / "index.html",


rule report_page:
    """Write the report, one page that needs no other file."""
    input:
        RUN_MARKERS,
        results=rules.collect.output.results,
        tests=rules.tests.output.tests,
        statistics=STATISTICS_FILES,
        stated=STATED_FILE,
        figures=FIGURE_FILES,
        manifest=rules.manifest.output.manifest,
        given=[*rules.manifest.input.given, rules.manifest.output.checksums],
        templates=expand(
            "{folder}/html/{file}",
            folder=TEMPLATES,
            file=(
                "report.html.j2",
                "tuning.html.j2",
                "verdict.html.j2",
                "answers.html.j2",
                "scores.html.j2",
                "published.html.j2",
                "setup.html.j2",
                "reproduce.html.j2",
                "page.js",
                "stated.html.j2",
                "trend.html.j2",
                "section.html.j2",
                "tables.html.j2",
                "runs.html.j2",
                "protocol.html.j2",
                "cite.html.j2",
                "frequency.html.j2",
                "variants.html.j2",
                "word_similarity.html.j2",
                "seeds.html.j2",
                "noise.html.j2",
                "cost.html.j2",
                "statistics.html.j2",
                "table.html.j2",
                "style.css",
            ),
        ),
    output:
        page=captioned(STUDY_DIR / "report" / "index.html", "page", "Report"),
        checksums=checksums("report"),
    log:
        STUDY_DIR / "logs" / "report.log",
    shell:
        "{PYTHON:q} -m coupled_adam_bench report --plan {PLAN_FILE:q} --templates {TEMPLATES:q} --given {input.given:q}"
        " --checksums {output.checksums:q} --made-for {MADE_FOR} > {log:q} 2>&1"


# A server that is away fails no study: the summary notes it, and the next start imports again (rules/start.smk).
rule track:
    """Copy the study into MLflow, with its tables, figures and report."""
    input:
        RUN_MARKERS,
        rules.report_page.input.results,
        rules.report_page.input.tests,
        TABLE_FILES,
        FIGURE_FILES,
        rules.manifest.output.manifest,
        rules.report_page.output.page,
    output:
        summary=STUDY_DIR / IMPORT_SUMMARY,
        checksums=checksums("track"),
    log:
        STUDY_DIR / "logs" / "mlflow.log",
    shell:
        "{PYTHON:q} -m coupled_adam_bench track --plan {PLAN_FILE:q} --may-wait --out {output.summary:q}"
        " --checksums {output.checksums:q} --made-for {MADE_FOR} > {log:q} 2>&1"
