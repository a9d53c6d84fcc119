"""How dense the code is: tokens, tokens a line, modules, long functions, and the words of the
pages.

python benchmarks/density.py

Comments, docstrings and blank lines count as nothing. The numbers are a compass: nothing goes for
their sake.
"""

import ast
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that docstrings of modules, classes, functions and attributes
    take."""
    strings = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    return {
        line
        for node in strings
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def measure(folder: Path) -> dict[str, float]:
    """Return the numbers of all modules below a folder."""
    modules = sorted(path for path in folder.rglob("*.py") if "tests" not in path.parts)
    n_tokens, n_lines, n_sugar = 0, 0, 0
    lengths: list[int] = []
    for path in modules:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        silent_lines = docstring_lines(tree)
        lines = set()
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type in SILENT or token.start[0] in silent_lines:
                    continue
                n_tokens += 1
                lines.update(range(token.start[0], token.end[0] + 1))
        n_lines += len(lines)
        for node in ast.walk(tree):
            n_sugar += isinstance(node, ast.NamedExpr | ast.Lambda)
            if isinstance(node, ast.FunctionDef):
                own = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                lengths.append(len(lines.intersection(own)))
    lengths.sort()
    return {
        "modules": len(modules),
        "code lines": n_lines,
        "tokens": n_tokens,
        "tokens a line": round(n_tokens / n_lines, 2),
        "walruses and lambdas per 1,000 lines": round(1000 * n_sugar / n_lines, 1),
        "lines of a function, ninetieth percentile": lengths[int(0.9 * len(lengths))],
    }


def main() -> None:
    """Print the numbers of the bench, its packages and its pages."""
    for folder in (ROOT / "src", *sorted((ROOT / "packages").glob("*/src"))):
        print(folder.relative_to(ROOT), measure(folder))
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    print(
        "words of README, CONTRIBUTING and docs:",
        sum(len(page.read_text().split()) for page in pages),
    )


if __name__ == "__main__":
    main()
