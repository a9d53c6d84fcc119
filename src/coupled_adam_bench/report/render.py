r"""Tables as LaTeX and HTML.

Both environments escape every variable by default; the only text that is not escaped are the symbols of
``catalog/metrics.py``. LaTeX templates write ``((( variable )))``, ``((* block *))`` and ``((# comment #))``.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.files import write_text
from coupled_adam_bench.markup import latex_escape
from coupled_adam_bench.plan import Plan
from coupled_adam_bench.report.table import PrintedTable, build_tables
from coupled_adam_bench.results.study_results import load_results

if TYPE_CHECKING:
    from jinja2 import Environment


class _Latex(str):
    """Text that is LaTeX already."""


def _environment(folder: Path, **options: Any) -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )


def latex_environment(templates_dir: Path) -> "Environment":
    """Return the jinja2 environment of the LaTeX templates."""

    def finalize(value: Any) -> Any:
        # Undefined passes, for jinja2 to raise.
        return latex_escape(value) if isinstance(value, str) and not isinstance(value, _Latex) else value

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


def html_environment(templates_dir: Path) -> "Environment":
    """Return the jinja2 environment of the HTML templates."""
    return _environment(templates_dir / "html", autoescape=True)


def render_latex(table: PrintedTable, templates_dir: Path) -> str:
    """Return a table as a LaTeX float that needs the package booktabs."""
    return latex_environment(templates_dir).get_template("table.tex.j2").render(table=table)


def render_html(table: PrintedTable, templates_dir: Path) -> str:
    """Return a table as a self-contained HTML page."""
    return html_environment(templates_dir).get_template("table_page.html.j2").render(table=table)


def write_tables(plan: Plan, results_csv: Path, tests_csv: Path, out_dir: Path, templates_dir: Path) -> None:
    """Write ``<table>.tex`` and ``<table>.html`` of every table that the study defines."""
    for table in build_tables(load_results(plan, results_csv, tests_csv)):
        write_text(out_dir / f"{table.name}.tex", render_latex(table, templates_dir))
        write_text(out_dir / f"{table.name}.html", render_html(table, templates_dir))
