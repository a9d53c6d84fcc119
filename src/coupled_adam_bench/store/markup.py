"""Plain text as LaTeX. Light."""

import re

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "[": "{[}", "]": "{]}", "&": r"\&", "%": r"\%", "$": r"\$",
    "#": r"\#", "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\symbol{34}", "±": r"$\pm$", "\u2212": "$-$",
}  # fmt: skip
_LATEX_PATTERN = re.compile("|".join(re.escape(character) for character in _LATEX) + r"|\s+")


def latex_escape(text: str) -> str:
    r"""Return plain text as LaTeX that prints it; white space becomes one space, as an empty line ends a caption.

    Letters that pdflatex does not know pass through: they need XeLaTeX or LuaLaTeX.
    """
    return _LATEX_PATTERN.sub(lambda match: _LATEX.get(match[0], " "), text)
