import re
import shutil
import subprocess
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from sections import html_of

from coupled_adam_bench.report.contents import setup_grid
from coupled_adam_bench.report.render import render_setup
from coupled_adam_bench.report.setup_tables import setup_tables
from coupled_adam_bench.statistics.declared import Material, Section
from coupled_adam_bench.store.files import digest
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import load_any_study, parse_any_study, parse_study
from coupled_adam_bench.tracking.described import name_without_seed

STUDIES = Path(__file__).parents[3] / "workflow" / "config"
DOCUMENT = r"""\documentclass[10pt,twocolumn]{article}
\usepackage[utf8]{inputenc}
\usepackage{booktabs,graphicx}
\begin{document}
BODY
\end{document}
"""


MEASURE = r"\typeout{\the\columnwidth\space for \the\wd0.}"


def test_the_paper_s_settings_are_printed_as_the_study_sets_them():
    models, training = setup_tables(
        make_plan(load_any_study(STUDIES / "paper_small.yaml"), [STUDIES])
    )
    assert models.rows == (
        ("125M", "124,373,760", "12", "12", "768", "3,072", "0.0006"),
        ("355M", "354,599,936", "24", "16", "1,024", "4,096", "0.0003"),
        ("760M", "758,392,320", "24", "16", "1,536", "6,144", "0.00025"),
    )
    assert models.title.startswith("Models (GPT-2") and models.title.endswith("; tied head)")
    found = dict(training.rows)
    assert training.header == ("setting", "value")
    # The paper's Table 5: see /docs/protocols.md for where code and text part.
    for name, text in {
        "optimizer of the core": "AdamW",
        "betas": "0.9, 0.95",
        "epsilon": "1e-08",
        "weight decay": "0.1",
        "gradient clipping": "1",
        "schedule": "cosine decay to 0.1 of the peak",
        "warmup": "100 steps, from the first step",
        "batch": "96 sequences of 1,024, 98,304 tokens",
        "precision": "bf16",
        "data": "openwebtext",
        "tokenizer": "gpt2",
        "vocabulary": "50,304",
        "seeds": "1, 2, 3",
    }.items():
        assert found[name] == text


def test_studies_that_train_alike_share_a_column():
    models, training = setup_tables(make_plan(load_any_study(STUDIES / "paper.yaml"), [STUDIES]))
    assert training.header == ("setting", "paper_small, paper_sgd, paper_scale", "paper_large")
    assert dict(
        zip([row[0] for row in training.rows], [row[2] for row in training.rows], strict=True)
    )["warmup"] == ("1 % of the steps, from the first step")
    assert [row[0] for row in models.rows] == ["125M", "355M", "760M", "1.3B", "2.6B"]
    assert [row[-1] for row in models.rows] == ["GPT-2"] * 3 + ["StableLM"] * 2


def test_own_optimizers_are_named_with_their_code(
    tiny_study,
):
    settings = tiny_study()
    assert "own optimizers" not in dict(setup_tables(make_plan(parse_study(settings)))[1].rows)
    own = {"name": "custom", "path": "torch.optim.Adagrad", "key": "mine", "label": "Mine"}
    settings["grid"][0]["optimizers"][1] = own
    plan = make_plan(parse_study(settings))
    code = digest({"torch": version("torch")})
    assert (
        dict(setup_tables(plan)[1].rows)["own optimizers"]
        == f"Mine (torch.optim.Adagrad, code {code})"
    )
    names = {name_without_seed(cell) for cell in plan.cells.values()}
    assert names == {
        "adamw 60 steps 1.43K",
        f"mine 60 steps 1.43K (torch.optim.Adagrad, code {code})",
    }


def test_a_table_of_the_study_s_own_may_not_take_the_name(
    tiny_study,
):
    own = {"title": "Mine", "comparison": "pair", "columns": ["loss"]}
    settings = tiny_study(tables={"setup_models": own})
    settings["grid"][0]["table"] = "setup_models"
    with pytest.raises(
        ValueError, match=r"tables\.setup_models: the table of the study's settings has this name"
    ):
        parse_study(settings)


def test_hostile_names_are_escaped_and_the_tables_fit(tmp_path, templates):
    settings = yaml.safe_load((STUDIES / "paper_small.yaml").read_text())
    plan = make_plan(parse_any_study(settings | {"title": r"50 % & <b>_{x}$ \input{/etc/passwd}"}))
    models, training = setup_tables(plan)
    rows = (*training.rows, ("a & b_c", r"<script>alert(1)</script> \\ 100 % " + "long " * 40))
    hostile = (models, replace(training, rows=rows))
    shown = Section(
        "setup",
        "Models and training",
        lambda _: [setup_grid(table, has_file=False) for table in hostile],
    )
    html = html_of(shown, Material(SimpleNamespace(plan=plan)))  # type: ignore[arg-type]
    assert "<script" not in html and "&lt;script&gt;" in html
    program = shutil.which("pdflatex")
    if program is None:
        pytest.skip("pdflatex is not installed")
    rendered = render_setup(models, templates)
    (rows,) = re.findall(r"\\begin{tabular}.*?\\end{tabular}", rendered, re.DOTALL)
    measured = rf"\sbox0{{\footnotesize\tabcolsep=3pt {rows}}}" + MEASURE
    body = "\n\\clearpage\n".join(
        [measured, *(render_setup(table, templates) for table in (models, training, hostile[1]))]
    )
    (tmp_path / "document.tex").write_text(DOCUMENT.replace("BODY", body))
    command = [
        program,
        "-interaction=nonstopmode",
        "-halt-on-error",
        "-no-shell-escape",
        "document.tex",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120
    )
    assert done.returncode == 0, done.stdout[-3000:]
    # The models need no smaller type than that of a footnote in a column.
    (widths,) = re.findall(r"([0-9.]+)pt for ([0-9.]+)pt", done.stdout)
    assert float(widths[1]) <= float(widths[0])
    assert "Overfull" not in done.stdout and "passwd)" not in done.stdout
