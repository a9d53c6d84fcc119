"""Writes anew what shows results as an example, after a label or the form of a table has changed:
the demo in docs/examples, the tables of the book, and the tables within pages.

    make examples

This is the last step of that command. It takes the demo from results/demo. Read the difference
before you commit it: only what you changed may differ.
"""

import argparse
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from claims import BOOK, ROOT, file_of
from tables import write_tables

EXAMPLE = ROOT / "docs" / "examples" / "demo"
MADE = ROOT / "results" / "demo"
PAGES = (ROOT / "README.md", *sorted(BOOK.glob("*/README.md")))
BLOCK = re.compile(r"(<!-- table: (\S+) -->\n+)((?:\|.*\n)+)")
"""A table within a page, after the comment that names its file."""
TABLE = re.compile(r"^\|.*\n\|[ |:-]+\n(?:\|.*\n)+", re.MULTILINE)
Rows = list[list[str]]


def shown(cell: str) -> str:
    """Return a cell of a table's file as pages show it: without italics; what is bold stays."""
    cell = cell.replace("ʳ", "^r").replace(" (tuned)", "")
    return re.sub(r"(?<!\*)\*(?!\*)", "", cell).strip()


def rows_of(table: str) -> Rows:
    """Return the cells of a table in Markdown, without the line below its head."""
    lines = [line.strip("|").split("|") for line in table.splitlines()]
    del lines[1]
    return [[shown(cell) for cell in line] for line in lines]


def rows_of_file(text: str, name: str) -> Rows:
    """Return the cells of the table of a file; ``ValueError`` if it has none."""
    found = TABLE.search(text)
    if found is None:
        raise ValueError(f"{name}: no table")
    return rows_of(found[0])


def filled(rows: Rows) -> Rows:
    """Return rows in which an empty cell is that of the row above."""
    whole: Rows = []
    for row in rows:
        above = whole[-1] if whole else row
        whole.append([cell or other for cell, other in zip(row, above, strict=True)])
    return whole


def _key(cells: list[str]) -> tuple[str, ...]:
    """Return what tells a row of a page from others: pages also write a minus as a hyphen."""
    return tuple(cell.replace("\u2212", "-") for cell in cells)


def renewed(table: str, before: str, after: str, name: str) -> str:
    """Return a table of a page with what its file has ``after`` a change.

    The table has some columns and rows of the file, which are found by what the file had
    ``before``. ``ValueError`` for one that it did not have.
    """
    own, old, new = rows_of(table), rows_of_file(before, name), rows_of_file(after, name)
    if [len(row) for row in old] != [len(row) for row in new]:
        raise ValueError(f"{name}: it has other rows or columns now; write its tables by hand")
    if lost := [head for head in own[0] if head not in old[0]]:
        raise ValueError(f"{name}: a page has the column {lost[0]}, which it did not have")
    columns = [old[0].index(head) for head in own[0]]
    keys = [_key([row[column] for column in columns]) for row in filled(old)]
    lines = []
    for row, cells in zip(own, filled(own), strict=True):
        if _key(cells) not in keys:
            raise ValueError(f"{name}: a page has the row {cells}, which it did not have")
        current = filled(new)[keys.index(_key(cells))]
        # A cell that a page leaves empty stays so.
        pairs = zip(columns, row, strict=True)
        texts = [current[column] if cell else "" for column, cell in pairs]
        lines.append(f"| {' | '.join(texts)} |")
    below = table.splitlines()[1]
    return "\n".join([lines[0], below, *lines[1:]]) + "\n"


def renew_page(text: str, before: dict[str, str], after: Callable[[str], str]) -> str:
    """Return a page with all of its tables renewed, given the files before the change, and what
    reads one after it."""

    def of_block(block: re.Match[str]) -> str:
        comment, name, table = block.groups()
        return comment + renewed(table, before[name], after(name), name)

    return BLOCK.sub(of_block, text)


def read_file(name: str) -> str:
    """Return the text of a table that a page names."""
    path = file_of(name)
    if path is None:
        raise ValueError(f"{name}: no such file of a study")
    return path.read_text(encoding="utf-8")


def named_tables() -> dict[str, str]:
    """Return the text of each table that a page names."""
    found = {}
    for page in PAGES:
        for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
            found[block[2]] = read_file(block[2])
    return found


def copy_over(made: Path, there: Path) -> None:
    """Copy from the folder ``made`` the files that the folder ``there`` has already."""
    for path in sorted(there.rglob("*")):
        new = made / path.relative_to(there)
        if path.is_file() and new.is_file():
            shutil.copyfile(new, path)


def main() -> None:
    """Write all of it."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    if not (MADE / "manifest.json").is_file():
        raise ValueError(f"{MADE}: no results of the demo; run `make examples`")
    before = named_tables()
    copy_over(MADE, EXAMPLE)
    for folder in sorted(BOOK.glob("*/tables")):
        with tempfile.TemporaryDirectory() as temporary:
            write_tables(folder.parent.name, Path(temporary))
            copy_over(Path(temporary), folder)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(renew_page(text, before, read_file), encoding="utf-8")


if __name__ == "__main__":
    main()
