"""Plain text as LaTeX, as a cell of a CSV file, and in sentences. Light."""

# ruff: noqa: RUF001 (letters that look like others are what LaTeX has to tell apart)

import re
import unicodedata
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
_MATH = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "ϵ": "epsilon",
    "ζ": "zeta", "η": "eta", "θ": "theta", "ϑ": "vartheta", "ι": "iota", "κ": "kappa",
    "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho", "ς": "varsigma",
    "σ": "sigma", "τ": "tau", "υ": "upsilon", "φ": "varphi", "ϕ": "phi", "χ": "chi", "ψ": "psi",
    "ω": "omega", "Γ": "Gamma", "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi",
    "Σ": "Sigma", "Υ": "Upsilon", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
    "≤": "leq", "≥": "geq", "≈": "approx", "≠": "neq", "≡": "equiv", "∼": "sim", "≃": "simeq",
    "≅": "cong", "∝": "propto", "≪": "ll", "≫": "gg", "∞": "infty", "∂": "partial", "∇": "nabla",
    "∑": "sum", "∏": "prod", "∫": "int", "√": "surd", "∈": "in", "∉": "notin", "∪": "cup",
    "∩": "cap", "⊂": "subset", "⊆": "subseteq", "∅": "emptyset", "∀": "forall", "∃": "exists",
    "∧": "wedge", "∨": "vee", "⊕": "oplus", "⊗": "otimes", "∘": "circ", "⋅": "cdot", "∗": "ast",
    "∓": "mp", "×": "times", "÷": "div", "·": "cdot", "→": "to", "←": "leftarrow",
    "↑": "uparrow", "↓": "downarrow", "↔": "leftrightarrow", "⇒": "Rightarrow",
    "⇐": "Leftarrow", "⇔": "Leftrightarrow", "↦": "mapsto", "‖": "Vert", "⟨": "langle",
    "⟩": "rangle", "ℓ": "ell", "′": "prime",
}  # fmt: skip
"""The letters and signs that are macros of every LaTeX, in formulas."""
_LATEX |= {letter: rf"$\{macro}$" for letter, macro in _MATH.items()}
_LATEX |= dict(zip("ΑΒΕΖΗΙΚΜΝΟοΡΤΧ", "ABEZHIKMNOoPTX", strict=True))
_RAISED = {"<sub>": "_", "<super>": "^"}
"""What Unicode calls small digits and letters below and above the line, and what LaTeX does."""
_SIGNS = "ßæÆœŒøØåÅłŁı¡¿–—‘’“”…¢£¤¥¦§©®°´¶µªº¼½¾†‡•‰€™"
_ACCENTS = "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327"
_OF_T1 = "ĄąĘęĮįŲųĐđÐðÞþŊŋ«»„‚‹›"
"""Letters that pdflatex has only in the encoding T1: those with an ogonek, and others."""
_PDFLATEX_T1 = r"\usepackage[T1]{fontenc} in pdflatex"
_UNICODE_LATEX = "XeLaTeX or LuaLaTeX with a font that has them"


def _is_accented(letter: str) -> bool:
    """Tell whether a letter is one of ASCII with an accent, of those that every LaTeX knows."""
    parts = unicodedata.normalize("NFD", letter)
    return letter < "\u0180" and len(parts) == 2 and parts[0].isascii() and parts[1] in _ACCENTS


def _as_latex(character: str) -> str:
    """Return a character as LaTeX, or as it is where no macro prints it."""
    if character in _LATEX:
        return _LATEX[character]
    kind, *parts = unicodedata.decomposition(character).split()[:3] or [""]
    if kind in _RAISED and len(parts) == 1 and character not in _SIGNS:
        raised = chr(int(parts[0], 16)).replace("\u2212", "-")
        return f"${_RAISED[kind]}{{{raised}}}$" if raised.isascii() else character
    return character


def latex_escape(text: str) -> str:
    r"""Return plain text as LaTeX that prints it; white space becomes one space, as an empty line
    ends a caption.

    Letters without a macro pass through, see :func:`letters_by_need`.
    """
    composed = re.sub(r"\s+", " ", unicodedata.normalize("NFC", text))
    return "".join(map(_as_latex, composed))


def letters_by_need(latex: str) -> dict[str, str]:
    r"""Return what LaTeX text needs to print letters that not every preamble has, each with these
    letters.

    pdflatex in its nonstop mode leaves letters out that it does not know, and ends with a PDF.
    """
    letters: dict[str, str] = {}
    for letter in dict.fromkeys(unicodedata.normalize("NFC", latex)):
        if letter in _OF_T1:
            need = _PDFLATEX_T1
        elif letter.isascii() or letter in _SIGNS or _is_accented(letter):
            continue
        else:
            need = _UNICODE_LATEX
        letters[need] = letters.get(need, "") + letter
    return letters


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
