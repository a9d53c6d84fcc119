"""What `make examples` writes anew: the tables within pages follow those of the studies."""

import difflib
from pathlib import Path

import pytest
from examples import EXAMPLE, PAGES, copy_over, named_tables, read_file, renew_page, renewed

ROOT = Path(__file__).parents[2]
FILE = """A caption.

| *D* | Optimizer | *L* ↓ | *r̄* ↑ |
| --- | --- | ---: | ---: |
| 1B | Adam (tuned) | 3.10 (1) | \u22121 (2) |
| | Coupled Adam | **3.00 (2)** | 5 (1) |

- A note.
"""
PAGE = """| Optimizer | L ↓ | r̄ ↑ |
|---|---|---|
| Coupled Adam | **3.00 (2)** | 5 (1) |
| Adam | 3.10 (1) | -1 (2) |
"""


def test_a_page_has_the_columns_and_rows_that_it_had_under_their_new_labels():
    after = FILE.replace("*L* ↓", "CE ↓").replace("Adam (tuned)", "AdamW (tuned)")
    assert (
        renewed(PAGE, FILE, after, "one")
        == """| Optimizer | CE ↓ | r̄ ↑ |
|---|---|---|
| Coupled Adam | **3.00 (2)** | 5 (1) |
| AdamW | 3.10 (1) | \u22121 (2) |
"""
    )


@pytest.mark.parametrize(
    ("page", "after", "message"),
    [
        (PAGE.replace("L ↓", "Acc ↑"), FILE, "one: a page has the column Acc ↑"),
        (PAGE.replace("5 (1)", "6 (1)"), FILE, "one: a page has the row .*6 \\(1\\)"),
        (PAGE, FILE.replace("| *r̄* ↑ |", "| *r̄* ↑ | x |"), "one: it has other rows or columns"),
        (PAGE, "A caption.", "one: no table"),
    ],
)
def test_what_a_table_does_not_have_is_refused(page, after, message):
    with pytest.raises(ValueError, match=message):
        renewed(page, FILE, after, "one")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_unchanged_tables_leave_a_page_as_it_stands(page):
    text = page.read_text(encoding="utf-8")
    made = renew_page(text, named_tables(), read_file)
    changed = list(difflib.ndiff(text.splitlines(), made.splitlines()))
    added = [line[2:] for line in changed if line.startswith("+")]
    lost = [line[2:] for line in changed if line.startswith("-")]
    assert [line.replace("\u2212", "-") for line in added] == lost


def test_only_files_that_are_there_are_written(tmp_path):
    made, there = tmp_path / "made", tmp_path / "there"
    for folder, names in ((made, ("a/x.md", "a/y.md", "b")), (there, ("a/x.md", "c"))):
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{folder.name} {name}")
    copy_over(made, there)
    found = {path.name: path.read_text() for path in there.rglob("*") if path.is_file()}
    assert found == {"x.md": "made a/x.md", "c": "there c"}


def test_the_command_makes_all_of_them():
    (recipe,) = (
        part
        for part in (ROOT / "Makefile").read_text().split("\n\n")
        if part.startswith("examples:")
    )
    for step in ("--forcerun report_of_study", "CAB_UPDATE_GOLDEN=1", "research/examples.py"):
        assert step in recipe
    assert (EXAMPLE / "tables" / "table1.md").is_file()
