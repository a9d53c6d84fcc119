"""Lays out the pages of the site as they lie in the repository; mkdocs.yml names this file.

The pages stand where a code host shows them: README.md, docs/, research/, packages/. So a relative
link between two of them is right in both places. A link to anything else in the repository, such as
a study or a module, leads to the code host, and one to nothing is left as it is, which ends a
strict build.
"""

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = (
    "*.md",
    "docs/*.md",
    "docs/decisions/*.md",
    "docs/examples/*/README.md",
    "research/*.md",
    "research/*/README.md",
    "packages/*/*.md",
    "benchmarks/README.md",
    "findings/README.md",
)
PICTURES = ("docs/**/*.png", "docs/**/*.svg", "research/**/*.svg", "research/**/*.png")
SHOWN = ("docs/examples/*/report/*.html",)
"""Pages of their own, which are shown as they are."""
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s#]+)(#[^)\s]*)?(?=[)\s])")
FENCE = re.compile(r"^( *)(`{3,}).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
API = {"coupled-adam": ("coupled_adam", False), "embedding-geometry": ("embedding_geometry", True)}
"""By folder, the packages whose docstrings are a page, and whether users import submodules."""


def address() -> str:
    """Return the address of the repository, which pyproject.toml knows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Repository"])


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages that a pattern of the list matches in its place, and name the code host."""
    config.repo_url = address()
    config.nav = [expanded(entry) for entry in config.nav or []]
    return config


def expanded(entry: Any) -> Any:
    """Return an entry of the list with the pages that its patterns match."""
    if not isinstance(entry, dict):
        return entry
    (title, below), *_ = entry.items()
    if not isinstance(below, list):
        return entry
    pages: list[Any] = []
    for page in below:
        if "*" in str(page):
            pages += [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob(page))]
        else:
            pages.append(expanded(page))
    return {title: pages}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the pages and pictures of the whole repository, by their places in it."""
    ours = [file for file in files if file.generated_by or file.src_dir != config.docs_dir]
    for pattern in (*PAGES, *PICTURES, *SHOWN):
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            ours.append(File.generated(config, name, abs_src_path=str(path)))
    for folder, (package, submodules) in API.items():
        options = f"    options: {{show_submodules: {submodules}}}"
        text = f"# The API of {package}\n\n::: {package}\n{options}\n"
        ours.append(File.generated(config, f"packages/{folder}/api.md", content=text))
    return Files(ours)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page whose links to what is no page lead to the code host."""
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(match: re.Match[str]) -> str:
        before, target, anchor = match[1], match[2], match[3] or ""
        inside = posixpath.normpath(posixpath.join(folder, target))
        if "://" in target or files.get_file_from_path(inside) is not None:
            return match[0]
        # A folder is its README, as on a code host.
        if files.get_file_from_path(f"{inside}/README.md") is not None:
            return f"{before}{target.rstrip('/')}/README.md{anchor}"
        path = ROOT / inside
        if not path.exists() or not path.is_relative_to(ROOT):
            return match[0]
        kind = "tree" if path.is_dir() else "blob"
        return f"{before}{config.repo_url}/{kind}/main/{inside}{anchor}"

    parts, end = [], 0
    # What stands in a block of code is no link.
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(replaced, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(replaced, markdown[end:])])
