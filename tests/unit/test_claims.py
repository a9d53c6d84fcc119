"""README and docs say of the shipped studies what the files of these studies say.

A comment behind a sentence names the line that the sentence rests on, and what must hold of it:

    <!-- claim: english/tests.csv table=table1 n_tokens=1998848 metric=loss optimizer=adamw_f9 p_value<0.05 -->

The file lies below docs/examples. ``=`` selects lines, and exactly one must be left, or as many as ``lines=`` says. For
``<`` and ``>`` a column is compared; ``~`` asks for the same number, rounded to the digits that stand there.

With ``seeds=`` that many runs of a results.csv become one line: mean, low, high and, with ``reference=``,
mean_reference and difference. The interval has 95 % and is paired by seed where there is a reference.
``reference_X=`` is what the reference has in another column X.

A comment before a table, <!-- table: demo/tables/table1.md -->, says that its rows and columns are in that file.
"""

import csv
import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from scipy import stats

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CLAIM = re.compile(r"(?P<column>\w+)(?P<operator>[=<>~])(?P<text>.+)")

Line = dict[str, str] | dict[str, float]


def comments(kind: str) -> Iterator[tuple[str, str, str]]:
    """Yield page, the end of the prose before it, and text of all comments of a kind."""
    for page in PAGES:
        whole = page.read_text(encoding="utf-8")
        for found in re.finditer(rf"<!-- {kind}: (.*?) -->", whole, re.DOTALL):
            yield page.name, re.sub("<!--.*?-->", "", whole[: found.start()], flags=re.DOTALL)[-1000:], found[1]


def of_seeds(lines: list[dict[str, str]], wanted: dict[str, str], seeds: int) -> dict[str, float]:
    """Return the mean over seeds or, with a reference, the difference to it."""

    def runs(selected: dict[str, str]) -> list[float]:
        found = {line["seed"]: float(line["value"]) for line in lines if selected.items() <= line.items()}
        count = sum(selected.items() <= line.items() for line in lines)
        assert count == len(found) == seeds, f"{count} lines of {len(found)} seeds for {selected}"
        return [found[seed] for seed in sorted(found)]

    own = {name: text for name, text in wanted.items() if not name.startswith("reference")}
    values = runs(own)
    line = {"mean": math.fsum(values) / seeds}
    if "reference" in wanted:
        changed = {name[10:]: text for name, text in wanted.items() if name.startswith("reference_")}
        others = runs(own | {"optimizer": wanted["reference"]} | changed)
        line["mean_reference"] = math.fsum(others) / seeds
        values = [value - other for value, other in zip(values, others, strict=True)]
        line["difference"] = math.fsum(values) / seeds
    line["low"], line["high"] = stats.t.interval(0.95, seeds - 1, math.fsum(values) / seeds, stats.sem(values))
    return line


def rounded(value: float, text: str) -> str:
    """Return a number with as many digits as a text has."""
    digits = len(text.partition("e")[0].partition(".")[2])
    return f"{value:.{digits}{'e' if 'e' in text else 'f'}}"


def holds(line: Line, column: str, operator: str, text: str) -> bool:
    value = float(line[column])
    if operator == "~":
        return float(rounded(value, text)) == float(text)
    return value < float(text) if operator == "<" else value > float(text)


def check(claim: str) -> None:
    """Raise an AssertionError if a claim does not hold, or does not say of which line."""
    name, *words = shlex.split(claim)
    parts = [CLAIM.fullmatch(word) for word in words]
    assert all(parts), f"unreadable: {claim}"
    wanted = {part["column"]: part["text"] for part in parts if part and part["operator"] == "="}
    conditions = [part.groups() for part in parts if part and part["operator"] != "="]
    seeds, count = int(wanted.pop("seeds", "0")), int(wanted.pop("lines", "1"))
    with (EXAMPLES / name).open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    selected: list[Line] = (
        [of_seeds(lines, wanted, seeds)] if seeds else [line for line in lines if wanted.items() <= line.items()]
    )
    assert len(selected) == count, f"{len(selected)} lines, not {count}: {claim}"
    for line in selected:
        for condition in conditions:
            assert holds(line, *condition), f"{condition} does not hold of {line}: {claim}"


@pytest.mark.parametrize(("page", "before", "claim"), [pytest.param(*one, id=one[2]) for one in comments("claim")])
def test_what_is_said_of_a_study_is_in_its_files(page, before, claim):
    check(claim)
    for number in re.findall(r"~-?(\S+)", claim):
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\.?\d)", before), f"{number} is not said in {page}"


RIVALS = "rivals/results.csv task=test metric=loss"


@pytest.mark.parametrize(
    "claim",
    [
        "rivals/tests.csv table=rivals metric=loss optimizer=nobody p_value<1",
        "rivals/tests.csv table=rivals metric=loss optimizer=ember p_value<1",  # against each other one
        "rivals/tests.csv table=rivals metric=loss optimizer=ember reference=adamw p_value<0.05",
        "rivals/tests.csv metric=loss optimizer=ember reference=adamw p_value<=1",
        f"{RIVALS} seeds=4 optimizer=adamw mean~4.50",
        f"{RIVALS} seeds=5 optimizer=adamw mean~4.51",
        f"{RIVALS} seeds=5 optimizer=coupled_adam reference=adamw high<0",
        f"{RIVALS} seeds=5 optimizer=coupled_adam reference=nobody high>0",
        "rivals/results.csv metric=isotropy seeds=5 optimizer=adamw mean>0",  # of which part of the embedding?
    ],
)
def test_a_claim_without_its_one_line_is_refused(claim):
    with pytest.raises((AssertionError, ValueError)):
        check(claim)


# Tables.


def plain(cell: str) -> str:
    """Return a cell without the markup of letters; what is bold stays."""
    cell = cell.replace("<sup>r</sup>", "^r").replace(" (tuned)", "").replace("\u2212", "-").replace("&lt;", "<")
    return re.sub(r"</?i>|(?<!\*)\*(?!\*)", "", cell.replace("ʳ", "^r")).strip()


def rows_of(text: str) -> list[dict[str, str]]:
    """Return the rows of the first table of a text; an empty cell among the first ones is that of the row above."""
    table = re.search(r"^\|.*\n\|[ |:-]+\n(?:\|.*\n)+", text, re.MULTILINE)
    assert table, "no table"
    header, _, *body = [[plain(cell) for cell in line.strip("|").split("|")] for line in table[0].splitlines()]
    rows: list[dict[str, str]] = []
    for cells in body:
        row = dict(zip(header, cells, strict=True))
        rows.append({name: cell or rows[-1][name] for name, cell in row.items()})
    return rows


def tables() -> Iterator[tuple[str, str, str]]:
    for page in PAGES:
        for name, text in re.findall(
            r"<!-- table: (\S+) -->\n+((?:\|.*\n)+)", page.read_text(encoding="utf-8"), re.MULTILINE
        ):
            yield page.name, name, text


def test_each_named_table_stands_before_a_table():
    assert [text for *_, text in comments("table")] == [name for _, name, _ in tables()]


@pytest.mark.parametrize(("page", "name", "text"), list(tables()))
def test_a_table_has_the_numbers_of_its_study(page, name, text):
    whole = rows_of((EXAMPLES / name).read_text(encoding="utf-8"))
    for row in rows_of(text):
        assert sum(row.items() <= one.items() for one in whole) == 1, row


def test_every_comment_of_a_page_is_read():
    for page in PAGES:
        for comment in re.findall(r"<!--(.*?)-->", page.read_text(encoding="utf-8"), re.DOTALL):
            assert re.match(" (claim|table|faults): ", comment), comment
