"""README, docs and the book say of studies what the files of these studies say.

``research/claims.yaml`` has the sentences with the lines that they rest on, and
``research/claims.py`` says how they are written. Words that promise more than one line are held to
it:

- *every, all, each, no, none, nobody*: one of the claims has ``every=``.
- *own rate*: the rate was chosen at the number of tokens that the claim names.
- *as much*: the sentence has both ends of an interval.
- What stands in bold on a page of the book is one of the sentences.

A comment before a table, <!-- table: demo/tables/table1.md -->, says that its rows and columns are
in that file.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import claims
import jsonschema
import pytest
from claims import entries, file_of, folded, lines_of, main, prose, read

ROOT = Path(__file__).parents[2]
BOOK = [ROOT / "research" / "README.md", *sorted((ROOT / "research").glob("*/README.md"))]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *BOOK]
QUANTIFIER = re.compile(r"\b(every|all|each|no|none|nobody)\b", re.IGNORECASE)
OWN_RATE = re.compile(r"\bown (learning )?rates?\b", re.IGNORECASE)

ENTRIES = entries()
check = cache(claims.check)
"""A claim reads thousands of lines, and is looked at alone and with all others."""


def is_chosen_there(claim: str) -> bool:
    """Tell whether the rates of a claim's optimizers were chosen at the number of tokens that it
    names."""
    name, wanted, _ = read(claim)
    file = f"{Path(name).parent}/tuning.csv"
    optimizers = {wanted[column] for column in ("optimizer", "reference") if column in wanted}
    if file_of(file) is None or "n_tokens" not in wanted or not optimizers:
        return False
    chosen = {
        (line["optimizer"], line["n_tokens"]) for line in lines_of(file) if line["chosen"] == "True"
    }
    return all((optimizer, wanted["n_tokens"]) in chosen for optimizer in optimizers)


def sentences(page: Path) -> Iterator[str]:
    """Yield the sentences of a page's paragraphs and items."""
    text = re.sub(
        r"^```.*?^```|<!--.*?-->",
        "",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    for block in re.split(r"\n\s*\n|\n(?=\s*- )|\n(?=[|#])", text):
        if not block.startswith(("|", "#")):
            yield from re.split(
                r"(?<=[.!?])\s+(?=[A-Z*])", folded(block).strip().removeprefix("- ")
            )


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
    assert sentence in prose(ROOT / entry["page"]), (
        f"{entry['page']} has no such sentence: {sentence}"
    )
    if QUANTIFIER.search(sentence):
        assert any("every=" in claim for claim in entry["claims"]), (
            f"no claim with every=: {sentence}"
        )
    if "as much" in sentence:
        assert any("low~" in claim and "high~" in claim for claim in entry["claims"]), (
            f"no interval: {sentence}"
        )
    if OWN_RATE.search(sentence):
        assert any(map(is_chosen_there, entry["claims"])), (
            f"the rate was chosen at other numbers of tokens: {sentence}"
        )


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *BOOK], ids=lambda page: str(page.relative_to(ROOT))
)
def test_own_rates_are_said_in_claims_alone(page):
    claimed = [folded(entry["sentence"]) for entry in ENTRIES if ROOT / entry["page"] == page]
    loose = [
        one
        for one in sentences(page)
        if OWN_RATE.search(one) and not any(one in each for each in claimed)
    ]
    assert not loose


@pytest.mark.parametrize("page", BOOK, ids=lambda page: page.parent.name)
def test_a_headline_of_the_book_is_a_claim(page):
    claimed = " ".join(
        folded(entry["sentence"]) for entry in ENTRIES if ROOT / entry["page"] == page
    )
    headlines = re.findall(r"\*\*([^*]+\.)\*\*", prose(page))
    assert not [headline for headline in headlines if headline not in claimed]


def test_the_book_has_headlines():
    assert sum(len(re.findall(r"\*\*([^*]+\.)\*\*", prose(page))) for page in BOOK) > 15


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
    monkeypatch.setattr(claims, "check", check)
    assert main() == 0
    exported = json.loads(out.read_text(encoding="utf-8"))
    assert [entry["page"] for entry in exported] == [entry["page"] for entry in ENTRIES]
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
        ({"sentence": "Ember is the best of all."}, "research/README.md has no such sentence"),
        ({"claims": ["rivals/tests.csv metric=loss optimizer=nobody p_value<1"]}, "no line for"),
        (
            {"claims": ["nobody/results.csv seeds=3 mean>0"]},
            "nobody/results.csv: no such file of a study",
        ),
    ],
)
def test_what_does_not_hold_is_refused_and_not_exported(
    change, reason, tmp_path, monkeypatch, capsys
):
    entry = next(entry for entry in ENTRIES if entry["page"] == "research/README.md")
    monkeypatch.setattr(claims, "entries", lambda: [entry | change])
    monkeypatch.setattr("sys.argv", ["claims.py", "--out", str(tmp_path / "claims.json")])
    assert main() == 1
    said = capsys.readouterr().out
    assert said.startswith("REFUSED: research/README.md: ")
    assert reason in said
    assert not (tmp_path / "claims.json").exists()
