"""Every page and heading that README, docs, code, rules and studies name is there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from coupled_adam_bench.cli import parser

ROOT = Path(__file__).parents[2]
FIRST = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md")]
DOCS = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*/*.md"))
BOOK = [*sorted((ROOT / "research").glob("*.md")), *sorted((ROOT / "research").glob("*/README.md"))]
PAGES = [
    *FIRST,
    *DOCS,
    *EXAMPLES,
    *BOOK,
    ROOT / "benchmarks" / "README.md",
    ROOT / "findings" / "README.md",
    *(ROOT / "packages").glob("*/*.md"),
]
NAMING = (
    "src",
    "packages",
    "rules",
    "workflow",
    "templates",
    "benchmarks",
    "research",
    "slurm",
    "profiles",
    "Makefile",
    "pyproject.toml",
)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(target: str, page: Path) -> bool:
    """Tell whether a link of a page leads to nothing."""
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    return not file.exists() or bool(anchor and anchor not in anchors(file))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if "://" not in link and broken(link, page)]


def named() -> Iterator[tuple[str, str]]:
    """Yield file and page for each page that code, rules, studies or benchmarks name."""
    for top in (ROOT / name for name in NAMING):
        for file in [top] if top.is_file() else sorted(top.rglob("*")):
            if (
                file.suffix in {".py", ".smk", ".yaml", ".json", ".j2", ".toml"}
                or file.name == "Makefile"
            ):
                text = file.read_text(encoding="utf-8")
                for page in re.findall(r"(?:docs|research)/[\w/-]+\.md(?:#[\w-]+)?", text):
                    yield str(file.relative_to(ROOT)), page


def test_pages_that_code_names_are_there():
    found = list(named())
    assert len(found) > 20
    assert not [(file, page) for file, page in found if broken(page, ROOT / "README.md")]


@pytest.mark.parametrize(
    "page", [*FIRST[:3], *DOCS, *BOOK], ids=lambda page: str(page.relative_to(ROOT))
)
def test_files_that_a_page_names_are_there(page):
    """What a reader is to write is no file yet."""
    names = re.findall(
        r"`((?:tests|src|benchmarks|rules|workflow|templates|profiles|slurm|research)/[\w./-]+\w)",
        page.read_text(encoding="utf-8"),
    )
    others = re.compile(r"NAME|^src/utils\.py$")
    assert not [name for name in names if not others.search(name) and not (ROOT / name).exists()]


def test_the_commands_that_pages_name_are_there():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    there = {
        "make": set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)),
        "coupled_adam_bench": set(
            re.findall(r"^    ([a-z-]+)  ", parser().format_help(), re.MULTILINE)
        ),
    }
    text = "\n".join(page.read_text(encoding="utf-8") for page in [*FIRST[:3], *DOCS])
    for program, commands in there.items():
        named = set(re.findall(rf"(?:^|`|python -m ){program} ([a-z][a-z-]*)", text, re.MULTILINE))
        assert len(named) > 5
        assert named <= commands
