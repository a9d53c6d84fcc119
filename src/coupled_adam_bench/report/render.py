"""The templates, and how plain text is escaped in each format."""

import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

FORMATS = {"tex": "latex", "html": "html", "md": "md"}
"""The ending of each format, and the folder of its templates."""

# Of what stands in texts: special characters, and the symbols of metrics in notes.
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$",
    "±": r"$\pm$", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    "r̄": r"$\bar{r}$", "‖": r"$\|$", "μ": r"$\mu$", "ρ": r"$\rho$",
    "κ": r"$\kappa$", "ʳ": r"$^{\mathrm{r}}$",
}  # fmt: skip
_IN_LATEX = re.compile("|".join(map(re.escape, sorted(_LATEX, key=len, reverse=True))))


def latex(text: str) -> str:
    """Return plain text as LaTeX that prints it."""
    return _IN_LATEX.sub(lambda found: _LATEX[found[0]], text)


def markdown(text: str) -> str:
    """Return plain text as Markdown that shows it."""
    return re.sub(r"([\\`*\[\]|]|(?<!\w)_|_(?!\w)|<(?=\S))", r"\\\1", text)


def load_templates(folder: Path) -> Environment:
    """Return the templates; a name that is not given is an error, and HTML is escaped."""
    found = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=lambda name: ".html" in (name or ""),
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
    )
    found.filters |= {"tex": latex, "md": markdown}
    return found
