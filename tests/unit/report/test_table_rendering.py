import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from jinja2 import UndefinedError

from coupled_adam_bench.page.formats import Shorthand
from coupled_adam_bench.report.render import (
    html_environment,
    latex_environment,
    latex_escape,
    markdown,
    markdown_escape,
    numbers,
    render_html,
    render_latex,
    render_tabular,
    write_tables,
)
from coupled_adam_bench.report.table import PrintedTable, Row, Value, build_tables
from coupled_adam_bench.results.collect import results_frame
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.decisions import decide
from coupled_adam_bench.store.markup import letters_by_need
from coupled_adam_bench.study.catalogue.metrics import METRICS, Metric
from coupled_adam_bench.study.catalogue.tables import PAPER_COLUMNS, SETUP_TABLES, TABLE_ENDINGS
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import parse_study

PAPER = {name: METRICS[name] for name in PAPER_COLUMNS}


GOLDEN = Path(__file__).parents[2] / "golden"
HOSTILE = (
    r"<script>alert('x')</script> & 50 % of_it $1 #2 {a} [b] ~ ^ \input{/etc/passwd} \\ | \" *"
)

DOCUMENT = r"""\documentclass[10pt]{article}
\usepackage[utf8]{inputenc}
\usepackage[a4paper,margin=2cm]{geometry}
\usepackage{booktabs}
\pagestyle{empty}
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


@pytest.fixture
def small(tiny_study: Callable[..., dict[str, Any]], results_of: Any) -> StudyResults:
    """All three tables at two sizes and two numbers of tokens, with fixed numbers."""
    models = [
        {
            "name": name,
            "label": label,
            "n_layer": 1,
            "n_head": 2,
            "d_model": width,
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
        | {
            "table": "table7",
            "models": ["s"],
            "tokens": tokens[1:],
            "optimizers": [*pair, sgd],
        },
    ]
    plan = make_plan(parse_study(tiny_study(models=models, grid=grid, title="Numbers, made up")))
    places = {name: place for place, name in enumerate(PAPER)}

    def value_of(cell: Cell, metric: Metric) -> float:
        # What is not written out above: far apart, the same spread, at the scale of the metric's
        # digits.
        scale = 10.0 ** (1 - metric.digits)
        first = 1 + places[metric.name] + 2 * len(cell.optimizer.key)
        default = tuple((first + step) * scale for step in (0, 0.1, 0.2))
        value = SAMPLES.get((metric.name, cell.optimizer.key), default)[cell.seed - 1]
        return value + (cell.model.name == "m") * 0.1 * scale

    return results_of(plan, value_of)


@pytest.fixture
def tables(small: StudyResults) -> dict[str, PrintedTable]:
    return {table.name: table for table in build_tables(decide(small))}


def test_layout_values_and_bold(tables):
    table = tables["table1"]
    places = [(row.tokens, row.size, row.label) for row in table.rows]
    assert places == [
        (tokens, size, optimizer)
        for tokens in ("5B", "20B")
        for size in ("125M", "355M")
        for optimizer in ("Adam", "Coupled Adam")
    ]
    assert [metric.name for metric in table.columns] == list(PAPER)
    adam, coupled = (dict(zip(PAPER, row.cells, strict=True)) for row in table.rows[:2])
    # Sample standard deviations by hand: 0.004 and 0.003 of the losses, 0.12 of rho.
    assert (adam["loss"].text, coupled["loss"].text) == ("3.03 (0)", "2.97 (0)")
    assert (adam["loss"].bold, coupled["loss"].bold) == (False, True)
    assert (adam["acc"].bold, coupled["acc"].bold) == (False, False)
    assert (adam["rho"].text, coupled["rho"].text) == ("\u22120.35 (2)", "0.61 (12)")
    assert coupled["kappa"].number.missing
    assert not adam["kappa"].bold
    assert any("Missing (-): 4 of 64 values" in note for note in table.notes)
    assert any("lacks only some of its seeds" in note for note in table.notes)
    assert "Bold: significantly better than the other optimizer" in table.notes[1]
    assert [row.cells[0].text for row in tables["table2"].rows] == ["3.04", "2.98", "3.04", "2.98"]
    assert tables["table2"].notes[0] == "Single runs, one seed each."
    assert tables["table7"].notes[-1] == "Protocol: corrected."
    assert [row.label for row in tables["table7"].rows] == ["Adam", "Coupled Adam", "SGD, f = 100"]


def width_of(table: PrintedTable) -> int:
    """The most characters of a row of a table."""
    return max(sum(len(value.text) for value in row.cells) for row in table.rows)


def test_a_run_worse_than_guessing_is_marked_and_as_wide_as_others(
    tiny_study, results_of, templates
):
    sgd = [{"name": "sgd", "lr_factor": factor} for factor in (2, 1e9)]
    block = tiny_study()["grid"][0] | {"table": "table7", "optimizers": ["adamw", *sgd]}
    plan = make_plan(parse_study(tiny_study(grid=[block])))
    guessing = math.log(next(iter(plan.cells.values())).vocab_size)

    def table_of(worst: float, norm: float) -> PrintedTable:
        def value_of(cell: Cell, metric: Metric) -> float:
            if cell.optimizer.key != "sgd_f1e+09":
                return 0.5 + cell.seed / 100
            return {"loss": worst, "mean_norm": norm}.get(metric.name, 0.5) * (1 + cell.seed / 100)

        (table,) = build_tables(decide(results_of(plan, value_of)))
        return table

    table, ordinary = table_of(1.9e7, 3e9), table_of(0.9, 0.5)
    keys = [row.optimizer for row in table.rows]
    adam, _, failed = (dict(zip(PAPER, row.cells, strict=True)) for row in table.rows)
    assert keys[-1] == "sgd_f1e+09"
    assert (failed["loss"].text, failed["mean_norm"].text) == ("1.9e+07†", "3.1e+09")
    assert "†" not in adam["loss"].text and width_of(table) <= width_of(ordinary)
    note = f"†: worse than guessing, a loss above that of equal probabilities, {guessing:.2f}."
    assert note in table.notes and not any("†" in each for each in ordinary.notes)
    for text in (render_latex(table, templates), render_html(table, templates), markdown(table)):
        assert "1.9e+07†" in text and "†: worse than guessing" in text
    # The unrounded number stays in the file for programs.
    assert numbers(table)["loss.mean"].iloc[-1] == pytest.approx(1.9e7 * 1.02)
    slightly = table_of(guessing + 0.1, 0.5).rows[-1].cells[0]
    assert slightly.text == f"{(guessing + 0.1) * 1.02:.2f}† ({round(guessing + 0.1)})"


def test_a_column_that_nobody_measured_goes_with_a_note(small, templates):
    values = small.results["value"].mask(small.results["metric"] == "r_bar")
    table = build_tables(decide(replace(small, results=small.results.assign(value=values))))[0]
    assert [metric.name for metric in table.columns] == [each for each in PAPER if each != "r_bar"]
    assert all(len(row.cells) == len(table.columns) for row in table.rows)
    note = "Left out, since no run has a value: mean word-similarity correlation."
    assert note in table.notes
    assert "Missing (-): 4 of 56 values" in " ".join(table.notes)
    assert METRICS["r_bar"].html not in render_html(table, templates)
    assert "r_bar.mean" not in numbers(table)
    # Where no run has any value, nothing is known of what is measured.
    nothing = small.results.assign(value=math.nan)
    table = build_tables(decide(replace(small, results=nothing)))[0]
    assert [metric.name for metric in table.columns] == list(PAPER)


@pytest.mark.parametrize(
    ("documents", "note"),
    [
        ((100, 100), "Losses are over 12,345 tokens of 100 held-out documents."),
        (
            (99, 640),
            (
                "Losses are over 12,345 tokens of 99 to 640 held-out documents, which are few:"
                " other text may give "
            ),
        ),
        ((math.nan, math.nan), None),
    ],
)
def test_the_size_of_the_held_out_text_stands_below_every_loss(documents, note, small, templates):
    cells = small.plan.cells.values()
    sizes = {"n_predicted_tokens": (12345.0, 12345.0), "n_documents": documents}
    rows = [
        (cell, "test", name, each[cell.seed > 1], "1")
        for cell in cells
        for name, each in sizes.items()
    ]
    study = replace(small, results=pd.concat([small.results, results_frame(small.plan, rows)]))
    table = build_tables(decide(study))[0]
    found = [each for each in table.notes if "held-out" in each]
    assert [each[: len(note or "")] for each in found] == ([note] if note else [])
    for text in (render_latex(table, templates), render_html(table, templates), markdown(table)):
        assert ("Losses are over 12,345 tokens" in text) == (note is not None)


def test_a_missing_value_says_why_where_the_pointer_rests(tiny_plan, results_of, templates):
    def value(cell: Cell, metric: Metric) -> float:
        is_lost = (cell.optimizer.name, cell.seed) == ("coupled_adam", 2)
        return math.nan if is_lost and metric.name == "loss" else 1.0 + cell.seed / 8

    table = build_tables(decide(results_of(tiny_plan, value)))[0]
    adam, coupled = (row.cells[0] for row in table.rows[:2])
    assert (coupled.text, coupled.exact) == (
        "-",
        "1 of 3 values missing; seeds: 1.125, -, 1.375",
    )
    assert adam.exact == "mean 1.25, standard deviation 0.125, seeds: 1.125, 1.25, 1.375"
    page = html_environment(templates).get_template("table.html.j2")
    assert 'title="1 of 3 values missing;' in page.render(table=table, table_id="t")


def test_golden_files(small, templates, tmp_path):
    """Set CAB_UPDATE_GOLDEN=1 to write the files anew, and read the diff."""
    write_tables(decide(small), tmp_path / "tables", templates)
    names = sorted(
        f"{name}.{ending}" for name in ("table1", "table2", "table7") for ending in TABLE_ENDINGS
    )
    written = {path.name for path in (tmp_path / "tables").iterdir()}
    assert written == {*names, *(f"{name}.tex" for name in SETUP_TABLES)}
    for name in names:
        text = (tmp_path / "tables" / name).read_text()
        if name.endswith("html"):  # the style is no part of a table
            text = text[text.index("<main>") : text.index("</main>")]
        if os.environ.get("CAB_UPDATE_GOLDEN") == "1":
            (GOLDEN / name).write_text(text)
        assert text == (GOLDEN / name).read_text(), name


def test_tables_are_made_of_facts_and_ask_for_nothing_else(small, templates, tmp_path):
    """What has the facts of a study and no results has the same tables."""
    study = decide(small)
    read: Any = SimpleNamespace(plan=study.plan, layout=study.layout, facts=study.facts)
    for folder, given in (("whole", study), ("facts", read)):
        write_tables(given, tmp_path / folder, templates)
    written = sorted((tmp_path / "whole").iterdir())
    assert len(written) > len(TABLE_ENDINGS)
    for path in written:
        assert (tmp_path / "facts" / path.name).read_bytes() == path.read_bytes()


def hostile(table: PrintedTable) -> PrintedTable:
    bold = replace(table.rows[0].cells[0].fact, bold=True)
    cells = tuple(Value(Shorthand("1.00", "(1)"), bold) for _ in table.columns)
    places = [
        (HOSTILE, HOSTILE, 1),
        (HOSTILE, HOSTILE, 1),
        (HOSTILE, "[2pt]", 1),
        ("[1cm]", HOSTILE, 2),
    ]
    rows = tuple(Row(tokens, size, HOSTILE, n, 1, "x", cells) for tokens, size, n in places)
    return replace(table, caption=f"{HOSTILE}\n\nnext {HOSTILE}", rows=rows)


def test_html_escapes(tables, templates):
    text = render_html(hostile(tables["table1"]), templates)
    assert "<script" not in text
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; 50 % of_it" in text


def test_latex_escapes():
    assert latex_escape(r"a & b_c % d \input{x}") == r"a \& b\_c \% d \textbackslash{}input\{x\}"
    assert (
        latex_escape("$1 #2 ~ ^ <a> [b]\n\n\tc")
        == r"\$1 \#2 \textasciitilde{} \textasciicircum{} \textless{}a\textgreater{} {[}b{]} c"
    )
    assert latex_escape("0.123 ± 0.004, \u22121") == r"0.123 $\pm$ 0.004, $-$1"


def test_letters_of_labels_are_macros_or_said_to_need_another_latex():
    assert latex_escape("κ ≤ 1 · 2×8, ≈2K") == r"$\kappa$ $\leq$ 1 $\cdot$ 2$\times$8, $\approx$2K"
    assert latex_escape("β₂ 10⁻⁸ \u039c") == r"$\beta$$_{2}$ 10$^{-}$$^{8}$ M"
    assert latex_escape("Gro\u0308ße") == "Größe"
    assert letters_by_need(latex_escape("Größe & κ ≤ ½ – “naïve” 5 €")) == {}
    assert letters_by_need("ąđ語🙂語") == {
        r"\usepackage[T1]{fontenc} in pdflatex": "ąđ",
        "XeLaTeX or LuaLaTeX with a font that has them": "語🙂",
    }


def test_letters_that_need_another_latex_are_said_in_each_file(tables, templates):
    named = replace(tables["table1"], rows=(replace(tables["table1"].rows[0], label="語"),))
    said = "% The letters 語 need XeLaTeX or LuaLaTeX with a font that has them.\n"
    assert render_latex(named, templates).startswith(said)
    assert render_tabular(named, templates).startswith(said)


def test_templates_refuse_what_is_not_defined(templates):
    for environment, text in (
        (latex_environment(templates), "((( missing )))"),
        (html_environment(templates), "{{ missing }}"),
    ):
        with pytest.raises(UndefinedError, match="missing"):
            environment.from_string(text).render()


@pytest.fixture
def pdflatex(tmp_path: Path) -> Callable[[str], str]:
    """Compile a document and return its text log; skipped without pdflatex unless
    CAB_REQUIRE_TOOLS=1."""
    program = shutil.which("pdflatex")
    if program is None:
        if os.environ.get("CAB_REQUIRE_TOOLS") == "1":
            pytest.fail("pdflatex is not installed, and CAB_REQUIRE_TOOLS=1")
        pytest.skip("pdflatex is not installed")

    def compile_document(text: str) -> str:
        (tmp_path / "document.tex").write_text(text)
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
        assert (tmp_path / "document.pdf").stat().st_size > 1000
        return (tmp_path / "document.log").read_text(errors="replace")

    return compile_document


@pytest.mark.fault(
    "settings",
    "a label has letters that pdflatex does not know",
    "tables have them as macros, or say which LaTeX they need, where pdflatex dropped them",
)
@pytest.mark.parametrize("encoding", ["OT1", "T1"])
def test_pdflatex_prints_every_letter_that_no_file_says_it_lacks(encoding, pdflatex):
    known = {"pdflatex"} if encoding == "T1" else set[str]()
    printed = []
    for letter in map(chr, range(0xA1, 0x3000)):
        needs = letters_by_need(latex_escape(letter))
        if all(need.split()[-1] in known for need in needs):
            printed.append(letter)
    assert {*"κ≤≈×½→∞β₂öß"} <= {*printed}
    head = rf"\usepackage[{encoding}]{{fontenc}}" + "\n" + r"\begin{document}"
    body = " ".join(map(latex_escape, printed))
    log = pdflatex(DOCUMENT.replace(r"\begin{document}", head).replace("BODY", body))
    assert "Missing character" not in log


def standalone(templates: Path, *tables: PrintedTable) -> str:
    body = "\n".join(render_latex(table, templates) for table in tables)
    return DOCUMENT.replace("BODY", body)


BARE, GRAPHICS = "{booktabs}", "{booktabs,graphicx}"
# What authors write in, and what fits there: two columns (ACL, IEEE), one column of 5.5 in
# (NeurIPS, ICLR).
TWO_COLUMNS = DOCUMENT.replace("[10pt]", "[10pt,twocolumn]").replace("margin=2cm", "margin=2.5cm")
NARROW = DOCUMENT.replace("a4paper,margin=2cm", "textwidth=5.5in,textheight=9in")


def ratios(log: str) -> list[float]:
    """The widths of the tables over that of the line, which the documents below print."""
    return [float(text) for text in re.findall(r"CAB-RATIO ([0-9.]+)", log)]


def measured(text: str) -> str:
    """Print the width of each table over what it may have."""
    ratio = r"\typeout{CAB-RATIO \strip@pt\dimexpr 1pt*\wd0/\CABlimit\relax}"
    measure = (
        r"\dimen2=\CABwidth\relax\def\CABlimit{\dimen2}\makeatletter" + ratio + r"\makeatother"
    )
    return text.replace(r"\usebox0" + "\n\\caption", r"\usebox0" + measure + "\n\\caption")


@pytest.mark.parametrize("document", [TWO_COLUMNS, NARROW], ids=["two columns", "5.5 in"])
def test_tables_fit_what_they_are_for(tables, templates, pdflatex, document):
    widths = ("text", "column", "3.0in", "139mm")
    floats = [
        render_latex(replace(table, declaration=replace(table.declaration, width=width)), templates)
        for table in tables.values()
        for width in widths
    ]
    log = pdflatex(
        document.replace("BODY", measured("\n\\clearpage\n".join(floats))).replace(BARE, GRAPHICS)
    )
    assert "Overfull" not in log
    assert len(ratios(log)) == len(floats)
    assert all(0.4 < ratio <= 1.0001 for ratio in ratios(log)), ratios(log)


def test_a_table_that_fits_in_no_type_needs_graphicx_and_says_so(tables, templates, pdflatex):
    table = tables["table1"]
    text = render_latex(
        replace(table, declaration=replace(table.declaration, width="3in")), templates
    )
    assert text.splitlines()[2] == r"\begin{table}[t]"
    assert "table1 is too wide; load graphicx" in pdflatex(DOCUMENT.replace("BODY", text))


def test_the_type_is_no_smaller_than_it_must_be(tables, templates, pdflatex):
    table = tables["table1"]
    probe = r"\def\CABtry#1#2{\ifdim\wd0>\CABwidth\relax\typeout{CAB-SMALLER}"

    def tries(width: str) -> int:
        text = render_latex(
            replace(table, declaration=replace(table.declaration, width=width)), templates
        )
        text = text.replace(r"\def\CABtry#1#2{\ifdim\wd0>\CABwidth\relax", probe)
        return pdflatex(DOCUMENT.replace("BODY", text).replace(BARE, GRAPHICS)).count("CAB-SMALLER")

    counts = [tries(width) for width in ("20cm", "14.5cm", "5cm")]
    assert counts[0] == 0 < counts[1] < counts[2] == 5


def test_the_rows_alone_are_those_of_the_float(tables, templates, pdflatex):
    for table in tables.values():
        rows = render_tabular(table, templates)
        assert rows.startswith(r"\begin{tabular}") and rows.rstrip().endswith(r"\end{tabular}")
        assert rows in render_latex(table, templates)
    rows = render_tabular(hostile(tables["table1"]), templates)
    assert "passwd)" not in pdflatex(
        DOCUMENT.replace("BODY", rf"\resizebox{{\linewidth}}{{!}}{{{rows}}}").replace(
            BARE, GRAPHICS
        )
    )


def test_markdown_escapes(tables):
    assert (
        markdown_escape("a | b * c_d `e` <b> & @me #1 [x](y)\n\nz")
        == "a \\| b \\* c\\_d \\`e\\` \\<b\\> \\& &#64;me \\#1 \\[x\\](y) z"
    )
    text = markdown(hostile(tables["table1"]))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    # Whatever the labels hold, a row has as many cells as the header.
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows} == {len(PAPER) + 4}
    assert not re.search(r"(?<!\\)<", text) and "@" not in text


def test_csv_has_the_unrounded_numbers(tables, small):
    frame = numbers(tables["table1"])
    first = frame.iloc[0]
    assert (first["D"], first["N"], first["optimizer"], first["optimizer_key"]) == (
        "5B",
        "125M",
        "Adam",
        "adamw",
    )
    assert first["loss.mean"] == pytest.approx((3.031 + 3.027 + 3.035) / 3, abs=1e-15)
    assert first["loss.sd"] == pytest.approx(0.004) and first["loss.n"] == 3
    assert list(frame["loss.bold"]) == [False, True] * 4
    missing = frame[frame["optimizer_key"] == "coupled_adam"].iloc[0]
    assert missing["kappa.n"] == 2 and missing["kappa.mean"] != missing["kappa.mean"]
    assert sorted(frame["n_params"].unique()) == sorted(
        {group.setup.n_params for group in small.layout.groups["table1"]}
    )


def test_latex_compiles(tables, templates, pdflatex):
    log = pdflatex(standalone(templates, *tables.values()))
    assert "Overfull" not in log
    assert "undefined" not in log.lower()


def test_hostile_latex_compiles_and_reads_no_file(tables, templates, pdflatex):
    assert "passwd)" not in pdflatex(standalone(templates, hostile(tables["table1"])))


def test_a_caption_stands_above_where_the_table_says_so(tables, templates, pdflatex):
    table = tables["table1"]
    below = render_latex(table, templates)
    above = render_latex(
        replace(table, declaration=replace(table.declaration, caption="above")), templates
    )
    assert below.index("\\usebox0\n\\caption") < below.index("\\label")
    assert above.index("\\caption") < above.index("\\label") < above.index("\\toprule")
    assert sorted(above.replace("\\smallskip\n", "").split("\n")) == sorted(below.split("\n"))
    assert "Overfull" not in pdflatex(TWO_COLUMNS.replace("BODY", above).replace(BARE, GRAPHICS))
