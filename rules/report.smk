# in:  the indices of all evaluations, and the run folders they name
# out: results/<study>/: results.csv -> tests.csv -> tables/, figures/ -> manifest.json -> report/index.html; MLflow

from coupled_adam_bench.report.figures import figures_of


localrules:
    plan,
    collect,
    tests,
    tables_of_study,
    figures_of_study,
    manifest,
    report_page,
    track,


TABLES = sorted({block.table for part in PLAN.parts for block in part.study.grid if block.table})
TABLE_FILES = expand(STUDY_DIR / "tables" / "{table}.{format}", table=TABLES, format=("tex", "html"))
FIGURE_FILES = expand(STUDY_DIR / "figures" / "{figure}.{format}", figure=figures_of(PLAN), format=("svg", "pdf"))
# What labels, groups and notes are made of: a change of these renders again and computes nothing else.
LABELS = digest(
    {
        "title": PLAN.title,
        "parts": [
            part.study.model_dump(mode="json", include={"title", "protocol", "models", "grid"}) for part in PLAN.parts
        ],
        "cells": CELLS,
    }
)


rule plan:
    output:
        STUDY_DIR / "plan.txt",
    params:
        cells=LABELS,
    shell:
        "{PYTHON} -m coupled_adam_bench describe --plan {PLAN_FILE:q} --out {output:q}"


rule collect:
    input:
        [] if PARTIAL else rules.evaluate.input,
    output:
        STUDY_DIR / "results.csv",
    log:
        STUDY_DIR / "logs" / "collect.log",
    params:
        cells=LABELS,
        flags="--partial" if PARTIAL else "",
    shell:
        "{PYTHON} -m coupled_adam_bench collect --plan {PLAN_FILE:q} {params.flags} --out {output:q} > {log:q} 2>&1"


rule tests:
    input:
        results=rules.collect.output,
    output:
        STUDY_DIR / "tests.csv",
    log:
        STUDY_DIR / "logs" / "tests.log",
    params:
        protocol=protocol.STATISTICS,
    shell:
        "{PYTHON} -m coupled_adam_bench tests --plan {PLAN_FILE:q} --results {input.results:q} --out {output:q}"
        " > {log:q} 2>&1"


rule tables:
    input:
        TABLE_FILES,


rule tables_of_study:
    input:
        results=rules.collect.output,
        tests=rules.tests.output,
        templates=expand(
            "{folder}/{file}",
            folder=TEMPLATES,
            file=(
                "latex/table.tex.j2",
                "html/table.html.j2",
                "html/table_page.html.j2",
                "html/style.css",
            ),
        ),
    output:
        TABLE_FILES,
    log:
        STUDY_DIR / "logs" / "tables.log",
    params:
        folder=STUDY_DIR / "tables",
    shell:
        "{PYTHON} -m coupled_adam_bench tables --plan {PLAN_FILE:q} --results {input.results:q} --tests {input.tests:q}"
        " --templates {TEMPLATES:q} --out {params.folder:q} > {log:q} 2>&1"


rule figures:
    input:
        FIGURE_FILES,


rule figures_of_study:
    input:
        results=rules.collect.output,
    output:
        FIGURE_FILES,
    log:
        STUDY_DIR / "logs" / "figures.log",
    params:
        folder=STUDY_DIR / "figures",
    shell:
        "{PYTHON} -m coupled_adam_bench figures --plan {PLAN_FILE:q} --results {input.results:q}"
        " --out {params.folder:q} > {log:q} 2>&1"


rule manifest:
    input:
        results=rules.collect.output,
        tests=rules.tests.output,
        tables=TABLE_FILES if TABLES else [],
        figures=FIGURE_FILES,
    output:
        STUDY_DIR / "manifest.json",
    log:
        STUDY_DIR / "logs" / "manifest.log",
    shell:
        "{PYTHON} -m coupled_adam_bench manifest --plan {PLAN_FILE:q} > {log:q} 2>&1"


rule report:
    input:
        STUDY_DIR / "report" / "index.html",


rule report_page:
    input:
        manifest=rules.manifest.output,
        templates=expand(
            "{folder}/html/{file}",
            folder=TEMPLATES,
            file=("report.html.j2", "variants.html.j2", "theory.html.j2", "table.html.j2", "style.css"),
        ),
    output:
        STUDY_DIR / "report" / "index.html",
    log:
        STUDY_DIR / "logs" / "report.log",
    shell:
        "{PYTHON} -m coupled_adam_bench report --plan {PLAN_FILE:q} --templates {TEMPLATES:q} > {log:q} 2>&1"


rule track:
    input:
        results=rules.collect.output,
    output:
        STUDY_DIR / "mlflow.json",
    log:
        STUDY_DIR / "logs" / "mlflow.log",
    # Beside the tables, not after them.
    priority: 1
    shell:
        "{PYTHON} -m coupled_adam_bench track --plan {PLAN_FILE:q} --out {output:q} > {log:q} 2>&1"
