"""README, docs and the book say of studies what the files of these studies say.

Beside a page its ``.claims`` has the sentences with the lines that they rest on; ``pages.py`` and
``claims.py`` of the book say how they are written, and ``rule.py`` what words promise.

A comment before a table, <!-- table: demo/tables/table1.md -->, says that its rows and columns are
in that file.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import claims
import jsonschema
import pages
import pytest
import rule
from claims import checked, entries, file_of, main
from pages import SUMMARY, Entry, prose, sum_of
from rule import is_chosen_there

ROOT = Path(__file__).parents[2]
BOOK = [ROOT / "research" / "README.md", *sorted((ROOT / "research").glob("*/README.md"))]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *BOOK]

ENTRIES = entries()
check = cache(claims.check)
"""A claim reads thousands of lines, and is looked at alone and with all others."""


@pytest.fixture(autouse=True)
def checked_once(monkeypatch):
    monkeypatch.setattr(claims, "check", check)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.page}: {entry.key}")
def test_a_sentence_stands_on_its_page_and_says_what_its_lines_say(entry):
    checked(entry)
    assert not [*rule.unkept(entry)]


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *BOOK], ids=lambda page: str(page.relative_to(ROOT))
)
def test_headlines_and_own_rates_are_said_in_claims_alone(page):
    assert not [*rule.loose(page.relative_to(ROOT).as_posix(), ENTRIES)]


def test_the_book_has_headlines():
    assert sum(len(rule.HEADLINE.findall(prose(page))) for page in BOOK) > 15


def test_all_files_of_claims_are_read():
    files = {path.with_suffix(".md").relative_to(ROOT) for path in ROOT.glob("*/**/*.claims")}
    assert {path.as_posix() for path in files} | {"README.md"} == {each.page for each in ENTRIES}


MEMORY = "memory/results.csv seeds=3 n_tokens=3145728000 task=test metric=loss"
GAIN = (
    f"{MEMORY} optimizer=coupled_adam_f0.1 reference=adamw_f0.1 difference~-0.008 low~-0.009"
    " high~-0.008"
)
TEXT = "Coupled Adam's loss is 0.008 below Adam's (0.008 to 0.009) with 3.1B tokens."
KEY = f"Coupled Adam's loss … 3.1B tokens. [{sum_of(TEXT)}]"


def page_with(folder: Path, text: str, its_claims: str) -> list[Entry]:
    """Return the sentences with claims of a page that has a text."""
    (folder / "README.md").write_text(f"# A page\n\nIt stands here. {text} It ends.\n")
    (folder / "README.claims").write_text(its_claims)
    return [*pages.read_entries(folder / "README.claims")]


def test_a_sentence_is_found_by_its_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    (entry,) = page_with(tmp_path, TEXT, f"{KEY}\n    {GAIN}\n")
    assert checked(entry)["sentence"] == TEXT
    (tmp_path / "whole").mkdir()
    (entry,) = page_with(tmp_path / "whole", TEXT, f"{TEXT}\n    {GAIN}\n")
    with pytest.raises(ValueError, match="name it by: ") as raised:
        checked(entry)
    assert str(raised.value) == f"name it by: {KEY}"
    (tmp_path / "short").mkdir()
    (entry,) = page_with(tmp_path / "short", "It is so.", f"It is so.\n    {GAIN}\n")
    assert entry.sentence == "It is so."


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("0.008 below", "0.007 below"), f"another sentence, of the sum {'[0-9a-f]' * 6}"),
        (("below", "above"), "another sentence"),
        (("with 3.1B", "with 0.8B"), "has no such sentence any more"),
        ((TEXT, ""), "has 0 sentences with: Coupled Adam's loss"),
        ((TEXT, f"{TEXT} {TEXT}"), "has 2 sentences with: Coupled Adam's loss"),
    ],
)
def test_a_sentence_that_changed_or_went_is_refused(change, reason, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    (entry,) = page_with(tmp_path, TEXT.replace(*change), f"{KEY}\n    {GAIN}\n")
    with pytest.raises(ValueError, match=reason):
        checked(entry)


def test_a_number_of_a_claim_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    text = TEXT.replace("0.009", "0.010")
    key = KEY.replace(sum_of(TEXT), sum_of(text))
    (entry,) = page_with(tmp_path, text, f"{key}\n    {GAIN}\n")
    with pytest.raises(ValueError, match=r"0\.009 is not said: Coupled Adam's"):
        checked(entry)


@pytest.mark.parametrize("text", ["It stands here.", "    a claim", "It stands here.\nIt ends."])
def test_a_file_of_claims_has_sentences_with_claims(text, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    with pytest.raises(ValueError, match="a sentence, and its claims indented"):
        page_with(tmp_path, TEXT, text)
    (tmp_path / "README.md").unlink()
    with pytest.raises(ValueError, match=r"README\.md is no page"):
        [*pages.read_entries(tmp_path / "README.claims")]


PROMISES = {
    "no claim with every=": "At each D its loss is lower.",
    "no interval": "It gains as much.",
    "the rate was chosen at other numbers of tokens": "At own rates its loss is lower.",
}


@pytest.mark.parametrize("problem", PROMISES)
def test_what_words_promise_is_covered(problem, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    text = PROMISES[problem]
    (entry,) = page_with(tmp_path, text, f"{text}\n    {MEMORY} optimizer=adamw_f0.1 mean>0\n")
    assert [*rule.unkept(entry)] == [problem]
    monkeypatch.setattr(rule, "ROOT", tmp_path)
    page_with(tmp_path, f"**It gains.** {text}", "It ends.\n    x\n")
    found = [*rule.loose("README.md", [])]
    assert bool(found) == ("own rate" in text)
    (tmp_path / "book").mkdir()
    page_with(tmp_path / "book", "**It gains.**", "It ends.\n    x\n")
    assert [*rule.loose("book/README.md", [])] == ["no claim: It gains."]


RIVALS = "rivals/results.csv task=test metric=loss"
ENGLISH = "english/results.csv seeds=5 optimizer=coupled_adam reference=adamw every=n_tokens"


@pytest.mark.parametrize(
    "claim",
    [
        "rivals/tests.csv table=rivals metric=loss optimizer=nobody p_value<1",
        # against each other one
        "rivals/tests.csv table=rivals metric=loss optimizer=ember p_value<1",
        "rivals/tests.csv table=rivals metric=loss optimizer=ember reference=adamw p_value<0.05",
        "rivals/tests.csv metric=loss optimizer=ember reference=adamw p_value<=1",
        f"{RIVALS} seeds=4 optimizer=adamw mean~4.50",
        f"{RIVALS} seeds=5 optimizer=adamw mean~4.51",
        f"{RIVALS} seeds=5 optimizer=coupled_adam reference=adamw high<0",
        f"{RIVALS} seeds=5 optimizer=coupled_adam reference=nobody high>0",
        # of which part of the embedding?
        "rivals/results.csv metric=isotropy seeds=5 optimizer=adamw mean>0",
        # it is at 300K tokens, and at no other number
        f"{ENGLISH} task=embeddings metric=kappa low>0",
        f"{ENGLISH} task=embeddings metric=isotropy|kappa low>0",
        (
            "regime_memory/results.csv task=test metric=loss seeds=3 every=n_tokens"
            " optimizer=adamw_f0.1 mean>0"
        ),
        "regime_own/stated.csv every=hypothesis,n_tokens outcome==confirmed",
    ],
)
def test_a_claim_without_its_one_line_is_refused(claim):
    with pytest.raises(ValueError):
        check(claim)


def test_every_asks_every_value():
    check(f"{ENGLISH} task=embeddings metric=isotropy low>0.5")


def test_an_own_rate_is_one_that_was_chosen_at_these_tokens():
    own = (
        "regime_own/results.csv seeds=3 task=test metric=loss optimizer=coupled_adam"
        " reference=adamw n_tokens="
    )
    assert is_chosen_there(f"{own}786432000 low<0")
    assert not is_chosen_there(f"{own}3145728000 high<0")


# Tables.


def plain(cell: str) -> str:
    """Return a cell without the markup of letters; what is bold stays."""
    cell = (
        cell.replace("<sup>r</sup>", "^r")
        .replace(" (tuned)", "")
        .replace("\u2212", "-")
        .replace("&lt;", "<")
    )
    return re.sub(r"</?i>|(?<!\*)\*(?!\*)", "", cell.replace("ʳ", "^r")).strip()


def rows_of(text: str) -> list[dict[str, str]]:
    """Return the rows of the first table of a text; an empty cell among the first ones is that of
    the row above."""
    table = re.search(r"^\|.*\n\|[ |:-]+\n(?:\|.*\n)+", text, re.MULTILINE)
    assert table, "no table"
    header, _, *body = [
        [plain(cell) for cell in line.strip("|").split("|")] for line in table[0].splitlines()
    ]
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
        for name in re.findall(
            r"<!-- table: (.*?) -->", page.read_text(encoding="utf-8"), re.DOTALL
        )
    ]
    assert named == [name for _, name, _ in tables()]


@pytest.mark.parametrize(("page", "name", "text"), list(tables()))
def test_a_table_has_the_numbers_of_its_study(page, name, text):
    whole = rows_of(file_of(name).read_text(encoding="utf-8"))
    for row in rows_of(text):
        assert sum(row.items() <= one.items() for one in whole) == 1, row


def test_every_comment_of_a_page_is_read():
    for page in PAGES:
        for comment in re.findall(r"<!--(.*?)-->", page.read_text(encoding="utf-8"), re.DOTALL):
            assert re.match(" (table|faults): ", comment), comment


def test_what_is_claimed_is_exported_for_machines(tmp_path, monkeypatch):
    out = tmp_path / "claims.json"
    monkeypatch.setattr("sys.argv", ["claims.py", "--out", str(out)])
    assert main() == 0
    exported = json.loads(out.read_text(encoding="utf-8"))
    assert [entry["page"] for entry in exported] == [entry.page for entry in ENTRIES]
    first = next(entry for entry in exported if entry["page"] == "research/english/README.md")[
        "claims"
    ][0]
    assert first["file"].startswith("research/english/bundle/")
    assert first["select"]
    assert all((ROOT / claim["file"]).is_file() for entry in exported for claim in entry["claims"])
    assert all(claim["found"] for entry in exported for claim in entry["claims"])
    schema = json.loads((ROOT / "research" / "claims.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(exported, schema, cls=jsonschema.Draft202012Validator)
    contents = (ROOT / first["file"]).read_bytes()
    assert first["sha256"] == hashlib.sha256(contents).hexdigest()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"key": "Ember is the best of all."}, "0 sentences with: Ember is the best of all."),
        ({"claims": ("rivals/tests.csv metric=loss optimizer=nobody p_value<1",)}, "no line for"),
        (
            {"claims": ("nobody/results.csv seeds=3 mean>0",)},
            "nobody/results.csv: no such file of a study",
        ),
    ],
)
def test_what_does_not_hold_is_refused_and_not_exported(
    change, reason, tmp_path, monkeypatch, capsys
):
    entry = next(entry for entry in ENTRIES if entry.page == SUMMARY)
    monkeypatch.setattr(claims, "entries", lambda: [replace(entry, **change)])
    monkeypatch.setattr("sys.argv", ["claims.py", "--out", str(tmp_path / "claims.json")])
    assert main() == 1
    said = capsys.readouterr().out
    assert said.startswith("REFUSED: research/README.md: ")
    assert reason in said
    assert not (tmp_path / "claims.json").exists()
