r"""Tables as LaTeX, HTML, Markdown and CSV.

Both environments escape every variable by default; the only text that is not escaped are the
symbols of ``catalogue/metrics.py``. LaTeX templates write ``((( variable )))``, ``((* block *))``
and ``((# comment #))``.
"""

import html
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pandas import DataFrame

from coupled_adam_bench.page.formats import plural
from coupled_adam_bench.report.setup_tables import SetupTable, setup_tables
from coupled_adam_bench.report.table import PrintedTable, Value, build_tables
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.results.tidy import typed_frame, write_csv
from coupled_adam_bench.store.files import write_text
from coupled_adam_bench.store.markup import latex_escape, letters_by_need
from coupled_adam_bench.study.catalogue.metrics import Metric
from coupled_adam_bench.study.catalogue.tables import Table


class _Latex(str):
    """Text that is LaTeX already."""


def _environment(folder: Path, **options: Any) -> Environment:
    return Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )


def latex_environment(templates_dir: Path) -> Environment:
    """Return the jinja2 environment of the LaTeX templates."""

    def finalize(value: Any) -> Any:
        # Undefined passes, for jinja2 to raise.
        return (
            latex_escape(value)
            if isinstance(value, str) and not isinstance(value, _Latex)
            else value
        )

    environment = _environment(
        templates_dir / "latex",
        finalize=finalize,
        autoescape=False,
        block_start_string="((*",
        block_end_string="*))",
        variable_start_string="(((",
        variable_end_string=")))",
        comment_start_string="((#",
        comment_end_string="#))",
    )
    environment.filters["latex"] = _Latex
    return environment


def html_environment(templates_dir: Path) -> Environment:
    """Return the jinja2 environment of the HTML templates."""
    environment = _environment(templates_dir / "html", autoescape=True)
    environment.filters["plural"] = plural
    return environment


_UNITS_OF_INCH = {"in": 1.0, "cm": 2.54, "mm": 25.4, "pt": 72.27}
_COLUMN_INCHES = 3.5
"""A table of at most this width floats in one column: columns of two have 3.0 to 3.5 in (ACL 3.03,
IEEE 3.5)."""


def _float(table: Table) -> tuple[str, str]:
    """Return the environment of a table in LaTeX, and its length if the width is one."""
    length = "" if table.width in ("column", "text") else table.width
    in_column = table.width == "column"
    if length:
        in_column = float(length[:-2]) / _UNITS_OF_INCH[length[-2:]] <= _COLUMN_INCHES
    return "table" if in_column else "table*", length


def _with_needs(latex: str) -> str:
    """Return a file in LaTeX with a comment before it for letters that need more than its head
    says."""
    comments = [
        f"% The letters {letters} need {need}.\n"
        for need, letters in letters_by_need(latex).items()
    ]
    return "".join(comments) + latex


def render_latex(table: PrintedTable, templates_dir: Path) -> str:
    """Return a table as a LaTeX float, which needs booktabs.

    It takes the largest type in which it fits, and graphicx shrinks it if it fits in none.
    """
    environment, length = _float(table.declaration)
    template = latex_environment(templates_dir).get_template("table.tex.j2")
    return _with_needs(template.render(table=table, float=environment, length=length))


def render_tabular(table: PrintedTable, templates_dir: Path) -> str:
    """Return the rows of a table for the author's float and caption: the same rows as in our
    float."""
    template = latex_environment(templates_dir).get_template("tabular.tex.j2")
    return _with_needs(template.render(table=table))


def render_setup(table: SetupTable, templates_dir: Path) -> str:
    """Return a table of settings as a LaTeX float that needs the package booktabs."""
    template = latex_environment(templates_dir).get_template("setup.tex.j2")
    return _with_needs(template.render(table=table))


def render_html(table: PrintedTable, templates_dir: Path) -> str:
    """Return a table as a self-contained HTML page."""
    return html_environment(templates_dir).get_template("table_page.html.j2").render(table=table)


_MENTION = {"@": "&#64;"}  # GitHub links what follows a backslash and @ too
_MARKED = re.compile(r"[\\`*_\[\]#|~$]|[&<>@]|\s+")


def markdown_escape(text: str) -> str:
    """Return plain text as Markdown that shows it, in a cell of a table too: no link, mention,
    formula or tag."""

    def escaped(match: re.Match[str]) -> str:
        found = match[0]
        return " " if found.isspace() else _MENTION.get(found, f"\\{found}")

    return _MARKED.sub(escaped, text)


def _symbol(metric: Metric) -> str:
    """Return the symbol of a metric, which is HTML, in Markdown: what stands below a letter stands
    behind it."""
    text = re.sub(r"<sub>(.*?)</sub>", r" (\1)", metric.html.replace("<sup>r</sup>", "ʳ"))
    parts = re.split(r"</?i>", text)
    return "*".join(markdown_escape(html.unescape(part)) for part in parts)


def _cell(value: Value) -> str:
    return f"**{value.text}**" if value.bold else value.text


def markdown(table: PrintedTable) -> str:
    """Return a table in the Markdown of GitHub, with caption and notes as paragraphs."""
    symbols = map(_symbol, table.columns)
    arrows = [metric.arrow for metric in table.columns]
    lines = [
        ["*D*", "*N*", "Optimizer", *map(" ".join, zip(symbols, arrows, strict=True))],
        ["---"] * 3 + ["---:"] * len(table.columns),
    ]
    for row in table.rows:
        names = map(markdown_escape, (row.tokens, row.size, row.label))
        lines.append([*names, *map(_cell, row.cells)])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "".join(f"\n- {markdown_escape(note)}" for note in table.notes)
    return f"{markdown_escape(table.caption)}\n\n{text}\n{notes}\n"


def numbers(table: PrintedTable) -> DataFrame:
    """Return a table's rows with the unrounded ``mean`` and ``sd``, ``n`` and ``bold`` of each
    metric.

    ``n`` is the number of finite values; the mean of a row that lacks a seed is NaN, as in print.
    """
    columns: dict[str, type] = {
        "D": str,
        "N": str,
        "optimizer": str,
        "n_tokens": int,
        "n_params": int,
        "optimizer_key": str,
    }
    kinds: dict[str, type] = {"mean": float, "sd": float, "n": int, "bold": bool}
    columns |= {
        f"{metric.name}.{name}": kind for metric in table.columns for name, kind in kinds.items()
    }
    # A row says where it is, and then has the numbers of each metric side by side.
    records = []
    for row in table.rows:
        record: dict[str, Any] = {
            "D": row.tokens,
            "N": row.size,
            "optimizer": row.label,
            "n_tokens": row.n_tokens,
            "n_params": row.n_params,
            "optimizer_key": row.optimizer,
        }
        for metric, value in zip(table.columns, row.cells, strict=True):
            sample = value.fact.sample
            found = {"mean": sample.mean, "sd": sample.sd, "n": sample.n, "bold": value.bold}
            record |= {f"{metric.name}.{name}": number for name, number in found.items()}
        records.append(record)
    return typed_frame(records, columns)


def write_tables(study: StudyResults, out_dir: Path, templates_dir: Path) -> None:
    """Write every table that the study defines in each format of ``TABLE_ENDINGS``, and its
    settings in LaTeX."""
    tables, setups = build_tables(study), setup_tables(study.plan)
    texts = {}
    for table in tables:
        texts[f"{table.name}.tex"] = render_latex(table, templates_dir)
        texts[f"{table.name}.tabular.tex"] = render_tabular(table, templates_dir)
        texts[f"{table.name}.html"] = render_html(table, templates_dir)
        texts[f"{table.name}.md"] = markdown(table)
    for setup in setups:
        texts[f"{setup.name}.tex"] = render_setup(setup, templates_dir)
    for table in tables:
        write_csv(numbers(table), out_dir / f"{table.name}.csv")
    for name, text in texts.items():
        write_text(out_dir / name, text)
