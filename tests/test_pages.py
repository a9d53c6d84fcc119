"""The pages: each link leads somewhere; and the limits of the house, which pages count in, too."""

import ast
import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest
from tiny import REPOSITORY

FOLDERS = [REPOSITORY / name for name in ("docs", "research", "packages")]
PAGES = [*REPOSITORY.glob("*.md"), *(page for each in FOLDERS for page in each.rglob("*.md"))]
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
LINK = re.compile(r"(?:\]\(|src=\")([^)\s\"]+)")
NO_TOKENS = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as code hosts make them of headings."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in headings(target), link


def tokens(path: Path) -> int:
    """Return the tokens of a Python file, without comments, docstrings, line ends and indents."""
    text = path.read_text(encoding="utf-8")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
    docstrings = {node.body[0].lineno for node in nodes if ast.get_docstring(node) is not None}
    found = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(
        each.type not in NO_TOKENS | {tokenize.ENDMARKER}
        and not (each.type == tokenize.STRING and each.start[0] in docstrings)
        for each in found
    )


def words(page: Path) -> int:
    return len(page.read_text(encoding="utf-8").split())


def test_the_house_stays_small() -> None:
    tracked = subprocess.check_output(["git", "ls-files"], cwd=REPOSITORY, text=True).splitlines()
    files = [REPOSITORY / name for name in tracked if (REPOSITORY / name).is_file()]
    scripts = [file for file in files if file.suffix == ".py"]
    tests = [file for file in scripts if file.is_relative_to(REPOSITORY / "tests")]
    shipped = ("src", "packages")
    source = [file for file in scripts if file.relative_to(REPOSITORY).parts[0] in shipped]
    assert sum(map(tokens, source)) <= 70_000
    assert sum(map(tokens, tests)) <= 80_000
    assert len(source) <= 95
    assert max(len(file.read_text(encoding="utf-8").splitlines()) for file in source) <= 400
    read = [page for page in PAGES if page.parent in (REPOSITORY, REPOSITORY / "docs")]
    assert sum(words(page) for page in read if page.name != "CHANGELOG.md") <= 12_000
    assert len({name.partition("/")[0] for name in tracked}) <= 25
    assert max(file.stat().st_size for file in files) <= 2**20
