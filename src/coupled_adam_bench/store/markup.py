"""Plain text as LaTeX, as a cell of a CSV file, and in sentences. Light."""

import re
from collections.abc import Collection

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "[": "{[}",
    "]": "{]}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\symbol{34}",
    "±": r"$\pm$",
    "\u2212": "$-$",
}
_LATEX_PATTERN = re.compile("|".join(re.escape(character) for character in _LATEX) + r"|\s+")


def latex_escape(text: str) -> str:
    r"""Return plain text as LaTeX that prints it; white space becomes one space, as an empty line
    ends a caption.

    Letters that pdflatex does not know pass through: they need XeLaTeX or LuaLaTeX.
    """
    return _LATEX_PATTERN.sub(lambda match: _LATEX.get(match[0], " "), text)


def first_of(names: Collection[str], shown: int = 10) -> str:
    """Return the first names and how many more there are, for a sentence."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join([*names][:shown]) + more


def csv_cell(text: str) -> str:
    """Return text as a cell of a CSV file that no spreadsheet takes for a formula: those have an
    apostrophe before."""
    return f"'{text}" if _is_formula(text) else text


def text_of_cell(cell: str) -> str:
    """Return the text of which :func:`csv_cell` made a cell."""
    return cell[1:] if cell.startswith("'") and _is_formula(cell[1:]) else cell


def _is_formula(text: str) -> bool:
    """Tell whether a spreadsheet takes text, without apostrophes before it, for a formula; numbers
    are none."""
    start = text.lstrip("'")
    if not start.startswith(("=", "+", "-", "@", "\t", "\r")) or start in ("+", "-"):
        return False
    try:
        float(text)
    except ValueError:
        return True
    return False
