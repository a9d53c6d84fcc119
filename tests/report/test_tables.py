"""Tables 1, 2 and 7 of numbers that are made up, in each format as they were printed once and for all."""

import os
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
from tiny import REPOSITORY, tiny_study

from coupled_adam_bench.report.render import FORMATS, environment
from coupled_adam_bench.report.tables import Printed, print_table
from coupled_adam_bench.results.values import values_of
from coupled_adam_bench.statistics import tests as statistics
from coupled_adam_bench.study.catalogue.metrics import METRICS, Metric
from coupled_adam_bench.study.catalogue.tables import PAPER_COLUMNS
from coupled_adam_bench.study.plan import Cell, Plan, make_plan
from coupled_adam_bench.study.study import parse_study

GOLDEN = REPOSITORY / "tests" / "golden"
HOSTILE = r"<script>alert('x')</script> & 50 % of_it $1 #2 {a} [b] ~ ^ \input{/etc/passwd} \\ | \" *"
DOCUMENT = r"""\documentclass[10pt,twocolumn]{article}
\usepackage[a4paper,margin=2cm]{geometry}
\usepackage{booktabs,graphicx}
\begin{document}
BODY
\end{document}
"""
# Values of three seeds.
SAMPLES = {
    ("loss", "adamw"): (3.031, 3.027, 3.035),
    ("loss", "coupled_adam"): (2.972, 2.969, 2.966),
    ("loss", "sgd_f100"): (2.99, 2.97, 2.98),
    ("acc", "adamw"): (0.3491, 0.3502, 0.3471),
    ("acc", "coupled_adam"): (0.3493, 0.3511, 0.3479),
    ("acc", "sgd_f100"): (0.34, 0.34, 0.34),
    ("rho", "adamw"): (-0.35, -0.36, -0.33),
    ("rho", "coupled_adam"): (0.61, 0.73, 0.49),
    ("rho", "sgd_f100"): (-0.001, 0.001, -0.002),
    ("kappa", "coupled_adam"): (6.1, float("nan"), 6.3),
}


def plan_of(**sections: object) -> Plan:
    """All three tables at two sizes and two numbers of tokens."""
    models = [
        {"name": name, "label": label, "d_model": width, "n_layer": 1, "n_head": 2, "learning_rate": 0.01}
        for name, label, width in (("s", "125M", 8), ("m", "355M", 16))
    ]
    tokens = [{"steps": 50, "label": "5B"}, {"steps": 200, "label": "20B"}]
    pair, sgd = ["adamw", "coupled_adam"], {"name": "sgd", "lr_factor": 100}
    base = {"models": ["s", "m"], "tokens": tokens, "optimizers": pair}
    grid = [
        base | {"table": "table1"},
        base | {"table": "table2", "models": ["m"], "seeds": [1]},
        base | {"table": "table7", "models": ["s"], "tokens": tokens[1:], "optimizers": [*pair, sgd]},
    ]
    made = {"models": models, "grid": grid, "title": "Numbers, made up", "tables": {}}
    return make_plan(parse_study(tiny_study(**(made | sections))))


def value_of(cell: Cell, metric: Metric) -> float:
    """What is not written out above: far apart, the same spread, at the scale of the metric's digits."""
    scale, key = 10.0 ** (1 - metric.digits), cell.optimizer.names()[0]
    first = 1 + PAPER_COLUMNS.index(metric.name) + 2 * len(key)
    default = tuple((first + step) * scale for step in (0, 0.1, 0.2))
    value = SAMPLES.get((metric.name, key), default)[cell.seed - 1]
    return value + (cell.model.name == "m") * 0.1 * scale


def printed(plan: Plan, extra: list[tuple[str, str, float]] = [], **runs: object) -> dict[str, Printed]:
    """Return the tables of a plan, with further rows of each cell."""
    metrics = [METRICS[name] for name in PAPER_COLUMNS]
    rows = [
        (cell.id, metric.task, metric.name, value_of(cell, metric))
        for cell, metric in product(plan.cells.values(), metrics)
    ]
    rows += [(cell, *row) for cell, row in product(plan.cells, extra)]
    results = pd.DataFrame(rows, columns=["cell", "task", "metric", "value"])
    ended = {"status": "completed", "step": 200} | runs
    values = values_of(plan, results)
    tests = statistics.tests_of(values, plan.tables)
    of_runs = pd.DataFrame({"cell": [*plan.cells]}).assign(**ended)
    return {
        name: print_table(plan, table, values, tests, results, of_runs)
        for name, table in plan.tables.items()
    }


def render(table: Printed, ending: str) -> str:
    templates = environment(REPOSITORY / "templates")
    return templates.get_template(f"{FORMATS[ending]}/table.{ending}.j2").render(printed=table)


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("name", ["table1", "table2", "table7"])
def test_tables_are_those_of_old(name: str, ending: str) -> None:
    assert render(printed(plan_of())[name], ending) == (GOLDEN / f"{name}.{ending}").read_text()
