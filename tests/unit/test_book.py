"""The book: a folder a study, short pages that say what was not found, and tables that follow from
the results."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest
from claims import file_of
from tables import write_tables

from coupled_adam_bench.study.settings import load_any_study

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "research"
PAGES = [BOOK / "README.md", *sorted(BOOK.glob("*/README.md"))]
STUDIES = [page.parent for page in PAGES[1:]]
BENCH = ("src", "docs", "rules", "templates", "packages", "workflow", "profiles", "slurm")


def test_nothing_of_the_bench_knows_of_the_book():
    files = (file for top in BENCH for file in (ROOT / top).rglob("*"))
    texts = [file for file in files if file.suffix in {".py", ".md", ".smk", ".yaml", ".j2"}]
    assert len(texts) > 200
    known = re.compile(r"(?<!\w)research/")
    assert not [file for file in texts if known.search(file.read_text(encoding="utf-8"))]


def words(page):
    """Return the words of a page's prose: commands, tables and the targets of links are none."""
    text = re.sub(
        r"^```.*?^```|<!--.*?-->",
        "",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return [word for word in text.split() if any(map(str.isalnum, word))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_a_page_is_short(page):
    assert len(words(page)) <= (900 if page == PAGES[0] else 400)


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_a_page_says_what_was_asked_and_what_was_not_found(folder):
    first, _, text = (folder / "README.md").read_text(encoding="utf-8").partition("\n")
    assert "**Asked:**" in text
    if "never run" in first:
        assert "## What cannot be found" in text
        assert file_of(f"{folder.name}/results.csv") is None
    else:
        assert "## Found" in text
        assert "## Not found" in text


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_a_study_has_its_yaml_and_each_folder_stands_in_the_book(folder):
    assert (folder / f"{folder.name}.yaml").exists() or (folder / f"{folder.name}.py").exists()
    assert f"]({folder.name})" in PAGES[0].read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "folder",
    [folder for folder in STUDIES if (folder / "tables").exists()],
    ids=lambda folder: folder.name,
)
def test_the_tables_follow_from_the_results(folder, tmp_path):
    write_tables(folder.name, tmp_path)
    for table in (folder / "tables").iterdir():
        assert table.read_text(encoding="utf-8") == (tmp_path / table.name).read_text(
            encoding="utf-8"
        )


@pytest.mark.parametrize(
    "folder",
    [folder for folder in STUDIES if (folder / "registration.yaml").exists()],
    ids=lambda folder: folder.name,
)
def test_a_stated_plan_is_the_one_that_was_run(folder):
    manifest = file_of(f"{folder.name}/manifest.json")
    if "never run" in (folder / "README.md").read_text(encoding="utf-8").partition("\n")[0]:
        assert manifest is None  # what is stated waits for its study
        load_any_study(folder / f"{folder.name}.yaml")
        return
    assert manifest is not None
    stated = json.loads(gzip.decompress(manifest.read_bytes()))["stated"]
    registered = (folder / "registration.yaml").read_bytes()
    assert stated["sha256"] == hashlib.sha256(registered).hexdigest()
    bundled = file_of(f"{folder.name}/stated.yaml")
    assert bundled is None or bundled.read_bytes() == registered


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_a_page_shows_the_tables_and_figures_that_lie_beside_it(folder):
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert all(f"]({file.relative_to(folder)})" in page for file in folder.glob("figures/*"))
    assert all(
        f"<!-- table: {file.relative_to(BOOK)} -->" in page for file in folder.glob("tables/*")
    )


FORM = {"results.csv", "tests.csv", "stated.csv", "tuning.csv"}
"""The tables of a bundle, which a study without one has in its folder."""


def test_each_file_of_numbers_is_shown_or_claimed():
    claims = (BOOK / "claims.yaml").read_text(encoding="utf-8")
    shown = PAGES[0].read_text(encoding="utf-8")
    files = [file for folder in STUDIES for file in folder.glob("*.csv") if file.name not in FORM]
    assert len(files) > 5
    for file in files:
        is_claimed = f"- {file.relative_to(BOOK)} " in claims
        page = (file.parent / "README.md").read_text(encoding="utf-8")
        assert is_claimed or f"]({file.name})" in page or f"`{file.name}`" in shown, file


def test_a_study_finds_its_parts_beside_it():
    file = BOOK / "regime" / "regime.yaml"
    parts = load_any_study(file).load_parts([file.parent])
    assert {part.study for part in parts} == {
        part.stem for part in file.parent.glob("regime_*.yaml")
    }


def test_a_study_without_results_has_no_tables(tmp_path):
    with pytest.raises(ValueError, match="track3: no study of the book with results"):
        write_tables("track3", tmp_path)
