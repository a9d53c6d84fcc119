"""The site of the pages, as far as it can be told without its tools; `make docs` builds it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
LISTED = re.findall(r"^ +- (?:\w+: )?(\S+\.md)$", SETTINGS.partition("\nnav:\n")[2], re.MULTILINE)


def test_every_page_is_in_the_list_of_the_site():
    """A strict build ends without this, too, but nobody builds it in `make test`."""
    generated = {path for path in LISTED if path.endswith("/api.md")}
    named = {path for pattern in set(LISTED) - generated for path in ROOT.glob(pattern)}
    folders = (
        "*.md",
        "docs/*.md",
        "docs/decisions/*.md",
        "research/*.md",
        "research/*/README.md",
        "packages/*/*.md",
    )
    pages = {path for folder in folders for path in ROOT.glob(folder)}
    missing = {path.relative_to(ROOT).as_posix() for path in pages - named}
    assert not missing, "add them to the list in mkdocs.yml"


def test_no_page_of_the_list_is_gone():
    for pattern in LISTED:
        assert pattern.endswith("/api.md") or list(ROOT.glob(pattern)), pattern


def test_the_site_loads_nothing_from_elsewhere():
    assert re.search(r"^  font: false", SETTINGS, re.MULTILINE)
    assert "://" not in SETTINGS
