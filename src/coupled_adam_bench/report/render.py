r"""Tables as LaTeX and HTML.

Both environments escape every variable by default; the only text that is not escaped are the symbols of
``results/schema.py``. LaTeX templates write ``((( variable )))``, ``((* block *))`` and ``((# comment #))``.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.files import write_text
from coupled_adam_bench.plan import Plan
from coupled_adam_bench.report.table import Table, build_tables
from coupled_adam_bench.results.collect import read_results
from coupled_adam_bench.statistics.compare import read_tests

if TYPE_CHECKING:
    from jinja2 import Environment

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "[": "{[}", "]": "{]}", "&": r"\&", "%": r"\%", "$": r"\$",
    "#": r"\#", "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\symbol{34}", "±": r"$\pm$", "\u2212": "$-$",
}  # fmt: skip
_LATEX_PATTERN = re.compile("|".join(re.escape(character) for character in _LATEX) + r"|\s+")


class _Latex(str):
    """Text that is LaTeX already."""


def latex_escape(text: str) -> str:
    r"""Return plain text as LaTeX that prints it; white space becomes one space, as an empty line ends a caption.

    Letters that pdflatex does not know pass through: they need XeLaTeX or LuaLaTeX.
    """
    return _LATEX_PATTERN.sub(lambda match: _LATEX.get(match[0], " "), text)


def latex_environment(templates_dir: Path) -> "Environment":
    """Return the jinja2 environment of the LaTeX templates."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    def finalize(value: Any) -> Any:
        # Undefined passes, for jinja2 to raise.
        return latex_escape(value) if isinstance(value, str) and not isinstance(value, _Latex) else value

    environment = Environment(
        loader=FileSystemLoader(templates_dir / "latex"),
        undefined=StrictUndefined,
        finalize=finalize,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        block_start_string="((*",
        block_end_string="*))",
        variable_start_string="(((",
        variable_end_string=")))",
        comment_start_string="((#",
        comment_end_string="#))",
    )
    environment.filters["latex"] = _Latex
    return environment


def html_environment(templates_dir: Path) -> "Environment":
    """Return the jinja2 environment of the HTML templates."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(templates_dir / "html"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render_latex(table: Table, templates_dir: Path) -> str:
    """Return a table as a LaTeX float that needs the package booktabs."""
    return latex_environment(templates_dir).get_template("table.tex.j2").render(table=table)


def render_html(table: Table, templates_dir: Path) -> str:
    """Return a table as a self-contained HTML page."""
    return html_environment(templates_dir).get_template("table_page.html.j2").render(table=table)


def write_tables(plan: Plan, results_csv: Path, tests_csv: Path, out_dir: Path, templates_dir: Path) -> None:
    """Write ``<table>.tex`` and ``<table>.html`` of every table that the study defines."""
    for table in build_tables(plan, read_results(results_csv), read_tests(tests_csv)):
        write_text(out_dir / f"{table.name}.tex", render_latex(table, templates_dir))
        write_text(out_dir / f"{table.name}.html", render_html(table, templates_dir))
