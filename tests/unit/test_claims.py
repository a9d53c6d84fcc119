"""README and docs say of the shipped studies what the files of these studies say.

``docs/claims.yaml`` names, for each sentence that rests on results, the page, the sentence as it stands there, and the
lines that it rests on:

    - page: docs/english.md
      sentence: Word similarity is higher.
      claims:
        - english/tests.csv table=table1 n_tokens=2398208 metric=r_bar optimizer=coupled_adam p_value<0.05

The file lies below docs/examples. ``=`` selects lines, and exactly one must be left, or as many as ``lines=`` says;
``a|b`` selects a line for each. For ``<``, ``>`` and ``==`` a column is compared; ``~`` asks for the same number,
rounded to the digits that stand there, and the sentence has that number.

With ``seeds=`` that many runs of a results.csv become one line: mean, low, high and, with ``reference=``,
mean_reference and difference. The interval has 95 % and is paired by seed where there is a reference.
``reference_X=`` is what the reference has in another column X.

A name that ends in ``*`` selects what begins so. Where a rate was tuned, only ``cell=`` tells cells of one key apart.

``every=X`` asks the condition of every value that the column X has in the selected lines, so a new line that does not
hold ends the test. Words that promise more than one line are held to it:

- *every, all, each, no, none, nobody*: one of the claims has ``every=``.
- *own rate*: the rate was chosen at the number of tokens that the claim names.
- *as much*: the sentence has both ends of an interval.
- What stands in bold on a page of findings is one of the sentences.

A comment before a table, <!-- table: demo/tables/table1.md -->, says that its rows and columns are in that file.
"""

import csv
import itertools
import math
import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from scipy import stats

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FINDINGS = [ROOT / "docs" / name for name in ("evidence.md", "english.md", "regime.md")]
CLAIM = re.compile(r"(?P<column>\w+)(?P<operator>==|[=<>~])(?P<text>.+)")
QUANTIFIER = re.compile(r"\b(every|all|each|no|none|nobody)\b", re.IGNORECASE)
OWN_RATE = re.compile(r"\bown (learning )?rates?\b", re.IGNORECASE)

Line = dict[str, str] | dict[str, float]
Entry = dict[str, Any]

ENTRIES: list[Entry] = yaml.safe_load((ROOT / "docs" / "claims.yaml").read_text(encoding="utf-8"))


def folded(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@cache
def prose(page: Path) -> str:
    """Return a page on one line, without comments."""
    return folded(re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))


@cache
def lines_of(name: str) -> list[dict[str, str]]:
    with (EXAMPLES / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def is_selected(line: dict[str, str], wanted: dict[str, str]) -> bool:
    return all(
        fnmatchcase(line[column], text) if "*" in text else line[column] == text for column, text in wanted.items()
    )


def of_seeds(lines: list[dict[str, str]], wanted: dict[str, str], seeds: int) -> dict[str, float]:
    """Return the mean over seeds or, with a reference, the difference to it."""

    def runs(selected: dict[str, str]) -> list[float]:
        found = {line["seed"]: float(line["value"]) for line in lines if is_selected(line, selected)}
        count = sum(is_selected(line, selected) for line in lines)
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
    if operator == "==":
        return str(line[column]) == text
    value = float(line[column])
    if operator == "~":
        return float(rounded(value, text)) == float(text)
    return value < float(text) if operator == "<" else value > float(text)


def read(claim: str) -> tuple[str, dict[str, str], list[tuple[str, str, str]]]:
    """Return the file of a claim, what selects its lines, and the conditions."""
    name, *words = shlex.split(claim)
    parts = [CLAIM.fullmatch(word) for word in words]
    assert all(parts), f"unreadable: {claim}"
    wanted = {part["column"]: part["text"] for part in parts if part and part["operator"] == "="}
    assert len(wanted) == sum(part["operator"] == "=" for part in parts if part), f"selected twice: {claim}"
    conditions = [(part[1], part[2], part[3]) for part in parts if part and part["operator"] != "="]
    return name, wanted, conditions


def selections(lines: list[dict[str, str]], wanted: dict[str, str]) -> Iterator[dict[str, str]]:
    """Yield what selects each line of a claim: a selection for each alternative and each value under ``every``."""
    columns = [column for column in wanted.pop("every", "").split(",") if column]
    alternatives = [[(name, text) for text in texts.split("|")] for name, texts in wanted.items()]
    for selected in map(dict, itertools.product(*alternatives)):
        own = {name: text for name, text in selected.items() if not name.startswith("reference") or name in lines[0]}
        found = {tuple(line[column] for column in columns) for line in lines if is_selected(line, own)}
        assert found, f"no line for {selected}"
        assert not columns or len(found) > 1, f"one value of {columns} is no reason to say every: {selected}"
        for values in sorted(found):
            yield selected | dict(zip(columns, values, strict=True))


def check(claim: str) -> None:
    """Raise an AssertionError if a claim does not hold, or does not name its lines."""
    name, wanted, conditions = read(claim)
    seeds, count = int(wanted.pop("seeds", "0")), int(wanted.pop("lines", "1"))
    lines = lines_of(name)
    for selected in selections(lines, wanted):
        found: list[Line] = (
            [of_seeds(lines, selected, seeds)] if seeds else [line for line in lines if is_selected(line, selected)]
        )
        assert len(found) == count, f"{len(found)} lines, not {count}: {selected} of {claim}"
        for line in found:
            for condition in conditions:
                assert holds(line, *condition), f"{condition} does not hold of {line}: {claim}"


def is_chosen_there(claim: str) -> bool:
    """Tell whether the rates of a claim's optimizers were chosen at the number of tokens that it names."""
    name, wanted, _ = read(claim)
    file = f"{Path(name).parent}/tuning.csv"
    optimizers = {wanted[column] for column in ("optimizer", "reference") if column in wanted}
    if not (EXAMPLES / file).exists() or "n_tokens" not in wanted or not optimizers:
        return False
    chosen = {(line["optimizer"], line["n_tokens"]) for line in lines_of(file) if line["chosen"] == "True"}
    return all((optimizer, wanted["n_tokens"]) in chosen for optimizer in optimizers)


def sentences(page: Path) -> Iterator[str]:
    """Yield the sentences of a page's paragraphs and items."""
    text = re.sub(r"^```.*?^```|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for block in re.split(r"\n\s*\n|\n(?=\s*- )|\n(?=[|#])", text):
        if not block.startswith(("|", "#")):
            yield from re.split(r"(?<=[.!?])\s+(?=[A-Z*])", folded(block).strip().removeprefix("- "))


CLAIMS = [pytest.param(entry, claim, id=claim) for entry in ENTRIES for claim in entry["claims"]]


@pytest.mark.parametrize(("entry", "claim"), CLAIMS)
def test_what_is_said_of_a_study_is_in_its_files(entry, claim):
    check(claim)
    for number in re.findall(r"~-?(\S+)", claim):
        said = re.search(rf"(?<![\d.]){re.escape(number)}(?!\.?\d)", entry["sentence"])
        assert said, f"{number} is not said in {entry['page']}: {entry['sentence']}"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["sentence"][:60])
def test_a_sentence_stands_on_its_page_and_promises_what_its_lines_cover(entry):
    sentence = folded(entry["sentence"]).strip()
    assert sentence in prose(ROOT / entry["page"]), f"{entry['page']} has no such sentence: {sentence}"
    if QUANTIFIER.search(sentence):
        assert any("every=" in claim for claim in entry["claims"]), f"no claim with every=: {sentence}"
    if "as much" in sentence:
        assert any("low~" in claim and "high~" in claim for claim in entry["claims"]), f"no interval: {sentence}"
    if OWN_RATE.search(sentence):
        assert any(map(is_chosen_there, entry["claims"])), f"the rate was chosen at other numbers of tokens: {sentence}"


@pytest.mark.parametrize("page", [ROOT / "README.md", *FINDINGS], ids=lambda page: page.name)
def test_own_rates_are_said_in_claims_alone(page):
    claimed = [folded(entry["sentence"]) for entry in ENTRIES if ROOT / entry["page"] == page]
    loose = [one for one in sentences(page) if OWN_RATE.search(one) and not any(one in each for each in claimed)]
    assert not loose


@pytest.mark.parametrize("page", FINDINGS, ids=lambda page: page.name)
def test_a_headline_of_a_finding_is_a_claim(page):
    claimed = " ".join(folded(entry["sentence"]) for entry in ENTRIES if ROOT / entry["page"] == page)
    findings = prose(page).partition("What it found" if page.name == "regime.md" else "What is known")[2] or prose(page)
    bold = re.findall(r"\*\*([^*]+\.)\*\*", findings)
    assert bold
    assert not [headline for headline in bold if headline not in claimed]


RIVALS = "rivals/results.csv task=test metric=loss"
ENGLISH = "english/results.csv seeds=5 optimizer=coupled_adam reference=adamw every=n_tokens"


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
        f"{ENGLISH} task=embeddings metric=kappa low>0",  # it is at 300K tokens, and at no other number
        f"{ENGLISH} task=embeddings metric=isotropy|kappa low>0",
        "regime_memory/results.csv task=test metric=loss seeds=3 every=n_tokens optimizer=adamw_f0.1 mean>0",
        "regime_own/stated.csv every=hypothesis,n_tokens outcome==confirmed",
    ],
)
def test_a_claim_without_its_one_line_is_refused(claim):
    with pytest.raises((AssertionError, ValueError)):
        check(claim)


def test_every_asks_every_value():
    check(f"{ENGLISH} task=embeddings metric=isotropy low>0.5")


def test_an_own_rate_is_one_that_was_chosen_at_these_tokens():
    own = "regime_own/results.csv seeds=3 task=test metric=loss optimizer=coupled_adam reference=adamw n_tokens="
    assert is_chosen_there(f"{own}786432000 low<0")
    assert not is_chosen_there(f"{own}3145728000 high<0")


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
    named = [
        name
        for page in PAGES
        for name in re.findall(r"<!-- table: (.*?) -->", page.read_text(encoding="utf-8"), re.DOTALL)
    ]
    assert named == [name for _, name, _ in tables()]


@pytest.mark.parametrize(("page", "name", "text"), list(tables()))
def test_a_table_has_the_numbers_of_its_study(page, name, text):
    whole = rows_of((EXAMPLES / name).read_text(encoding="utf-8"))
    for row in rows_of(text):
        assert sum(row.items() <= one.items() for one in whole) == 1, row


def test_every_comment_of_a_page_is_read():
    for page in PAGES:
        for comment in re.findall(r"<!--(.*?)-->", page.read_text(encoding="utf-8"), re.DOTALL):
            assert re.match(" (table|faults): ", comment), comment
