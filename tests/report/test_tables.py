"""Tables 1, 2 and 7 of numbers that are made up, in each format as they were printed once and for all."""

import os
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tiny import REPOSITORY, tiny_study

from coupled_adam_bench.report.render import FORMATS, load_templates
from coupled_adam_bench.report.tables import Printed, lay_out
from coupled_adam_bench.results.values import values_of
from coupled_adam_bench.statistics import tests as statistics
from coupled_adam_bench.study.catalogue.metrics import METRICS, Metric
from coupled_adam_bench.study.catalogue.tables import PAPER_COLUMNS
from coupled_adam_bench.study.plan import Cell, Plan, make_plan
from coupled_adam_bench.study.study import parse_study

GOLDEN = REPOSITORY / "tests" / "golden"
HOSTILE = (
    r"<script>alert('x')</script> & 50 % of_it $1 #2 {a} [b] ~ ^ \input{/etc/passwd} \\ | \" *"
)
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
        {
            "name": name,
            "label": label,
            "d_model": width,
            "n_layer": 1,
            "n_head": 2,
            "learning_rate": 0.01,
        }
        for name, label, width in (("s", "125M", 8), ("m", "355M", 16))
    ]
    tokens = [{"steps": 50, "label": "5B"}, {"steps": 200, "label": "20B"}]
    pair, sgd = ["adamw", "coupled_adam"], {"name": "sgd", "lr_factor": 100}
    base = {"models": ["s", "m"], "tokens": tokens, "optimizers": pair}
    grid = [
        base | {"table": "table1"},
        base | {"table": "table2", "models": ["m"], "seeds": [1]},
        base
        | {"table": "table7", "models": ["s"], "tokens": tokens[1:], "optimizers": [*pair, sgd]},
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


def printed(plan: Plan, *extra: tuple[str, str, float], **runs: object) -> dict[str, Printed]:
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
        name: lay_out(plan, table, values, tests, results, of_runs)
        for name, table in plan.tables.items()
    }


def render(table: Printed, ending: str) -> str:
    templates = load_templates(REPOSITORY / "templates")
    return templates.get_template(f"{FORMATS[ending]}/table.{ending}.j2").render(printed=table)


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("name", ["table1", "table2", "table7"])
def test_tables_are_those_of_old(name: str, ending: str) -> None:
    assert render(printed(plan_of())[name], ending) == (GOLDEN / f"{name}.{ending}").read_text()


def test_notes_say_what_is_missing_and_what_numbers_rest_on() -> None:
    counts = [
        ("hellaswag", "n_items", 50.0),
        ("hellaswag", "n_items_of", 10042.0),
        ("race", "n_items", 200.0),
        ("race", "n_cut", 700.0),
        ("race", "n_prompts", 800.0),
        ("men", "n_pairs", 2486.0),
        ("men", "pearson_cosine", 0.7),
        ("rw", "n_pairs", 2.0),
    ]
    table = printed(plan_of(), *counts, status="diverged", step=7)["table1"]
    notes = " ".join(table.notes)
    for said in ("first 50 of 10,042", "700 of 800", "2,486", "2: diverged", "4 of 64", "of rw"):
        assert said in notes, said
    shared = tiny_study()["training"] | {"data_order": "per_rank"}
    assert len(printed(plan_of(training=shared))["table1"].notes) == 5
    few = tiny_study()["data"] | {"vocab_size": 128}  # log 128 is 4.85, above all losses
    assert "guessing" not in " ".join(printed(plan_of(data=few))["table1"].notes)


def test_a_table_tells_only_what_its_own_columns_rest_on() -> None:
    own = {"table1": {"title": "1", "comparison": "pair", "columns": ["loss", "r_bar"]}}
    counts = [("race", "n_items", 200.0), ("men", "n_pairs", 2486.0)]
    notes = " ".join(printed(plan_of(tables=own), *counts)["table1"].notes)
    assert "2,486" in notes
    assert "race" not in notes


def test_a_column_without_values_is_left_out_and_a_loss_above_guessing_told() -> None:
    plan = plan_of()
    metrics = [METRICS["loss"], METRICS["kappa"]]
    rows = [(cell, metrics[0].task, "loss", 5.0 + index) for index, cell in enumerate(plan.cells)]
    results = pd.DataFrame(rows, columns=["cell", "task", "metric", "value"])
    values = values_of(plan, results)
    tests = statistics.tests_of(values, plan.tables)
    runs = pd.DataFrame({"cell": [*plan.cells], "status": "completed", "step": 1})
    table = lay_out(plan, plan.tables["table1"], values, tests, results, runs)
    assert [column.name for column in table.columns] == ["loss"]
    assert sum(f"above {4.85}" in note for note in table.notes) == 1
    assert not any(note.startswith("Missing") for note in table.notes)


def hostile() -> dict[str, Printed]:
    """Tables whose every text of the user's is hostile."""
    own = {"mine": {"title": HOSTILE, "comparison": "each_other", "columns": ["loss", "r_bar"]}}
    models = [
        {"name": "s", "label": HOSTILE, "d_model": 8, "n_layer": 1, "n_head": 2, "learning_rate": 1}
    ]
    optimizers = [
        "adamw",
        {"name": "custom", "path": "torch.optim.SGD", "key": "x", "label": HOSTILE},
    ]
    block = {"table": "mine", "models": ["s"], "tokens": [{"steps": 50, "label": HOSTILE}]}
    sections: dict[str, Any] = {"models": models, "tables": own, "title": HOSTILE}
    return printed(plan_of(grid=[block | {"optimizers": optimizers}], **sections))


def test_text_of_users_is_escaped() -> None:
    table = hostile()["mine"]
    assert "<script" not in render(table, "html")
    lines = render(table, "md").splitlines()
    rows = [re.sub(r"\\.", "", line) for line in lines if line.startswith("|")]
    assert len(rows) == 4
    assert {row.count("|") for row in rows} == {len(table.columns) + 4}
    assert "<script" not in re.sub(r"\\.", "", " ".join(lines))


def test_latex_sets_all_tables_into_a_column_or_page(tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        assert os.environ.get("CAB_REQUIRE_TOOLS") != "1"
        pytest.skip("pdflatex is not installed")
    tables = [*printed(plan_of()).values(), *hostile().values()]
    body = "\n".join(render(table, "tex") for table in tables)
    (tmp_path / "all.tex").write_text(DOCUMENT.replace("BODY", body))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
