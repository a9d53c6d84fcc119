"""The rule of the book: what a sentence that rests on numbers of a study says along with them.

- A number names its batch, its number of training tokens and its rate. What is the same at all
  places of the study may stand once on the page of the study, or in the section of another page.
- Where the same contrast has another sign, or an interval that holds 0, at another place of the
  study, the paragraph or list item of the sentence names these places too: it has a claim of each.
- Optimizers that differ in their rates are not said to differ in one thing alone.
- A hypothesis that failed is told where the confirmed ones are: all of them on the page of the
  study, and on another page those of the same metric that share an optimizer with a confirmed one.
- On the page that sums up the book a decimal number belongs to a claim, or its sentence has a link.
- How often a page says that its text is read is what the numbers of tokens give.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from claims import (
    BOOK,
    ROOT,
    Entry,
    file_of,
    folded,
    is_selected,
    lines_of,
    read,
    rounded,
    selections,
)
from places import (
    Contrast,
    batch_of,
    contrast,
    elsewhere,
    groups_of,
    has_results,
    kind,
    like,
    rate_of,
    results_of,
    stale,
    times_read,
)

from coupled_adam_bench.results.groups import GROUP_COLUMNS, Group
from coupled_adam_bench.study.plan.cells import Cell

SUMMARY = "research/README.md"
PAPER_BATCH, PAPER_RATE = 98_304, 6e-4
"""The batch of the paper and, for its smallest model, whose rate the head alone has, the rate."""
READ_TIMES = re.compile(r"\b(?:read|drawn) ([\d.]*\d) times|([\d.]*\d)\s+passes over the text")
DECIMAL = re.compile(r"(?<![\w.])-?\d+\.\d")
COUNTS = ("seeds", "lines", "holding")
"""Words of a claim that select neither lines nor values."""
SIGN = re.compile(r"\b(paired_)?(difference|low|high)[<>~]")
"""The condition of a claim that says which of two optimizers has more."""
SETTING = re.compile(r"(beta2|beta1) (=|of) [\d.]*\d")


@dataclass(frozen=True)
class Claimed:
    """What a claim rests on at one place: the metric and the keys of one optimizer or of two."""

    study: str
    group: Group
    metric: str
    optimizers: tuple[str, ...]
    outcome: str = ""
    """What became of the hypothesis, for a claim of stated.csv."""

    @property
    def cells(self) -> list[Cell]:
        """The cells of the optimizers, or all of the place."""
        found = self.group.cells
        return [cell for key in self.optimizers or found for cell in found[key]]

    @property
    def contrast(self) -> Contrast | None:
        """The difference of two optimizers; None for one, and where one seed has no spread."""
        if len(self.optimizers) != 2 or not self.metric:
            return None
        found = contrast(self.study, self.group, self.metric, *self.optimizers)
        return None if math.isnan(found.low) else found


@cache
def claimed(claim: str) -> tuple[Claimed, ...]:
    """Return what a claim rests on; nothing for a file that does not say its place."""
    name, wanted, _ = read(claim)
    study, _, file = name.partition("/")
    if not has_results(study):
        return ()
    groups = groups_of(study)
    if file == "results.csv":
        return tuple(_of_results(study, lines_of(name), wanted))
    if file in {"tests.csv", "stated.csv"}:
        return tuple(_of_tests(study, lines_of(name), wanted))
    # Another file says nothing of the place, which is known where the study has only one.
    return (Claimed(study, groups[0], "", ()),) if len(groups) == 1 else ()


def _of_results(
    study: str, lines: list[dict[str, str]], wanted: dict[str, str]
) -> Iterator[Claimed]:
    wanted = {name: text for name, text in wanted.items() if name not in COUNTS}
    metrics = results_of(study).layout.metrics
    for selected in selections(lines, wanted):
        own = {name: text for name, text in selected.items() if not name.startswith("reference")}
        keys = [(selected.get("optimizer", ""), own)]
        if "reference" in selected:
            changed = {
                name[10:]: text for name, text in selected.items() if name.startswith("reference_")
            }
            keys.append(
                (selected["reference"], own | {"optimizer": selected["reference"]} | changed)
            )
        # The same name of another task, such as a part of the rows, is another quantity.
        known = metrics.get(selected.get("metric", ""))
        metric = known.name if known and known.task == selected.get("task", "") else ""
        ids = [{line["cell"] for line in lines if is_selected(line, which)} for _, which in keys]
        for group in groups_of(study):
            there = {key: {cell.id for cell in cells} for key, cells in group.cells.items()}
            found = [[key for key, cells in there.items() if cells & each] for each in ids]
            if all(found):
                yield Claimed(study, group, metric, tuple(keys[0] for keys in found))


def _of_tests(study: str, lines: list[dict[str, str]], wanted: dict[str, str]) -> Iterator[Claimed]:
    wanted = {name: text for name, text in wanted.items() if name not in COUNTS}
    for selected in selections(lines, wanted):
        for line in lines:
            if is_selected(line, selected):
                first, second = (
                    (line["better"], line["than"])
                    if "better" in line
                    else (line["optimizer"], line["reference"])
                )
                for group in groups_of(study):
                    place = dict(zip(GROUP_COLUMNS, group.place, strict=True))
                    if all(line[name] == str(value) for name, value in place.items()):
                        yield Claimed(
                            study, group, line["metric"], (first, second), line.get("outcome", "")
                        )


# Pages.


@dataclass(frozen=True)
class Block:
    """A paragraph or a list item of a page, on one line, with all of its section up to its end and
    what stands above the first section."""

    text: str
    section: str
    head: str


@cache
def blocks_of(page: Path) -> tuple[Block, ...]:
    """Return the paragraphs and list items of a page."""
    text = re.sub(r"^```.*?^```|<!--.*?-->", "", page.read_text("utf-8"), flags=re.M | re.S)
    sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    found = []
    for section in sections:
        above = ""
        for block in re.split(r"\n\s*\n|\n(?=\s*- )", section):
            above = f"{above} {folded(block)}"
            found.append(Block(folded(block), above, folded(sections[0])))
    return tuple(found)


def block_of(entry: Entry) -> Block:
    """Return the paragraph or list item of a sentence; one that spans several has their text."""
    sentence = folded(entry["sentence"])
    blocks = blocks_of(ROOT / entry["page"])
    for block in blocks:
        if sentence in block.text:
            return block
    (first, *_) = [block for block in blocks if sentence in block.section] or blocks[-1:]
    return Block(first.section, first.section, first.head)


# The rule.


def names_batch(text: str, cell: Cell) -> bool:
    """Tell whether a text names the tokens of a step."""
    batch = batch_of(cell)
    return f"{batch:,}" in text or (batch == PAPER_BATCH and "paper's batch" in text)


def names_tokens(text: str, cell: Cell) -> bool:
    """Tell whether a text names the number of training tokens, rounded, or the steps."""
    n = cell.n_tokens
    rounded = {f"{n / 1e9:.1f}B", f"{n / 1e6:.1f}M", f"{n / 1e6:.0f}M", f"{n / 1e3:.0f}K"}
    rounded.add(f"{float(f'{n:.1g}') / 1e3:.0f}K")
    return f"{cell.steps:,} steps" in text or any(
        re.search(rf"(?<![\d.]){re.escape(each)}", text) for each in rounded
    )


def names_rate(text: str, cell: Cell) -> bool:
    """Tell whether a text names the rate: on the head alone the paper's or ten times it, where it
    is that, and elsewhere that rates were chosen, or the same."""
    if cell.model.architecture == "contexts" and cell.tuning is None:
        times = rate_of(cell) / PAPER_RATE
        if round(times, 6) == 1:
            return bool(re.search(r"paper's( batch and)? rate|rates? (are|of) the paper", text))
        if round(times, 6) == 10:
            return "ten times" in text
    return bool(re.search(r"\brates?\b", text))


NAMES = {"batch": names_batch, "number of tokens": names_tokens, "rate": names_rate}
VALUES: dict[str, Any] = {
    "batch": batch_of,
    "number of tokens": lambda cell: cell.n_tokens,
    "rate": rate_of,
    "steps": lambda cell: cell.steps,
}


def varies(one: Claimed, what: str) -> bool:
    """Tell whether a coordinate differs between the places that a study has of a model and text."""
    values = set()
    kinds = {kind(key) for key in one.optimizers}
    for group in like(one.study, one.group):
        of_kinds = {key: cells for key, cells in group.cells.items() if kind(key) in kinds}
        if kinds == {kind(key) for key in of_kinds}:
            cells = [cell for of_key in of_kinds.values() for cell in of_key[:1]]
            values.add(frozenset(VALUES[what](cell) for cell in cells))
    return len(values) > 1


def unnamed(entry: Entry) -> Iterator[str]:
    """Yield which batches, numbers of tokens and rates a sentence with numbers does not name."""
    block, page = block_of(entry), ROOT / entry["page"]
    sentence = folded(entry["sentence"])
    # A table names its places in its columns.
    has_number = DECIMAL.search(SETTING.sub("", sentence)) and not block.text.startswith("|")
    # What is said of every place names none.
    for claim in entry["claims"] if has_number else ():
        for one in claimed(claim) if "every=" not in claim else ():
            own = page.parent.name == one.study
            wide = block.section + (block.head if own else "")
            # Where all runs have as many steps, these say once how many tokens a batch makes of it.
            steps = f"{one.group.first.steps:,} steps"
            has_steps = steps in wide and not varies(one, "steps")
            for what, names in NAMES.items():
                text = block.text if varies(one, what) else wide
                for cell in one.cells:
                    if not names(text, cell) and not (has_steps and names is names_tokens):
                        yield f"{what} {VALUES[what](cell):g} of {one.study} is not named"
                        break
            rates = {rate_of(cell) for cell in one.cells}
            is_pair = len(one.optimizers) == 2
            if is_pair and len(rates) > 1 and re.search(r"\balone\b|\bonly\b", sentence):
                yield f"{' and '.join(one.optimizers)} of {one.study} differ in their rates"


def place_of(study: str, group: Group, metric: str, optimizers: tuple[str, ...]) -> tuple[Any, ...]:
    """Return what tells two places of a contrast apart: its batch, tokens and rates, and of which
    text and model it is; the order of the two optimizers does not matter."""
    pair = frozenset((kind(key), rate_of(group.cells[key][0])) for key in optimizers)
    cell = group.first
    return (study, group.setup.model, group.setup.data, batch_of(cell), cell.n_tokens, metric, pair)


def untold_places(entry: Entry, others: list[Entry]) -> Iterator[str]:
    """Yield the places where a contrast says otherwise and no claim of its paragraph names it."""
    block = block_of(entry)
    claims = [
        claim
        for each in others
        if each["page"] == entry["page"] and block_of(each) == block
        for claim in each["claims"]
    ]
    found = [one for claim in claims if SIGN.search(claim) for one in claimed(claim)]
    told = {place_of(one.study, one.group, one.metric, one.optimizers) for one in found}
    for claim in entry["claims"]:
        for one in claimed(claim) if SIGN.search(claim) else ():
            here = one.contrast
            if here is None or here.sign == 0:
                continue
            for there in elsewhere(one.study, here):
                pair = (there.optimizer, there.reference)
                is_told = place_of(one.study, there.group, one.metric, pair) in told
                if there.sign != here.sign and not math.isnan(there.low) and not is_told:
                    yield (
                        f"{one.study} {one.metric}: {here.optimizer} minus {here.reference} is"
                        f" {here.difference:.4f} in {here.group.table}, and {there.optimizer} minus"
                        f" {there.reference} is {there.difference:.4f} ({there.low:.4f} to"
                        f" {there.high:.4f}) in {there.group.table} with {there.group.n_tokens:,}"
                        " tokens"
                    )


def untold_failures(page: str, entries: list[Entry]) -> Iterator[str]:
    """Yield the hypotheses that failed and that a page with confirmed ones does not tell."""
    found = [
        (claim, one)
        for entry in entries
        if entry["page"] == page
        for claim in entry["claims"]
        if "/stated.csv" in claim and "hypothesis=" in claim
        for one in claimed(claim)
    ]
    own = Path(page).parent.name
    for study in {one.study for _, one in found} | ({own} if has_results(own) else set()):
        if file_of(f"{study}/stated.csv") is None:
            continue
        of_study = [one for _, one in found if one.study == study]
        told = {
            (one.group.table, one.metric, one.optimizers)
            for one in of_study
            if one.outcome != "confirmed"
        }
        confirmed = [one for one in of_study if one.outcome == "confirmed"]
        for line in lines_of(f"{study}/stated.csv"):
            if line["outcome"] == "confirmed":
                continue
            pair = (line["better"], line["than"])
            is_near = any(
                one.metric == line["metric"] and {*pair} & {*one.optimizers} for one in confirmed
            )
            is_told = (line["table"], line["metric"], pair) in told
            if not is_told and (is_near or study == own):
                yield f"{study}: {line['hypothesis']!r} failed and is not told"


def unclaimed_numbers(page: str, entries: list[Entry]) -> Iterator[str]:
    """Yield the sentences of a page with a number that no claim has and no link gives."""
    said = [folded(entry["sentence"]) for entry in entries if entry["page"] == page]
    for block in blocks_of(ROOT / page):
        if block.text.startswith(("|", "#", "!")):
            continue
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z*])", block.text.removeprefix("- ")):
            has_number = DECIMAL.search(SETTING.sub("", sentence)) and "](" not in sentence
            if has_number and not any(sentence in each or each in sentence for each in said):
                yield f"no claim and no link: {sentence}"


def readings(page: str) -> Iterator[str]:
    """Yield what the page of a study says of how often its text is read, and is not so."""
    study = Path(page).parent.name
    if not has_results(study):
        return
    times = {group.table: times_read(study, group) for group in groups_of(study)}
    for block in blocks_of(ROOT / page):
        if "read twice" in block.text and max(times.values()) > 1:
            yield f"{study}: each token of the text is drawn {max(times.values()):.1f} times"
        for number in READ_TIMES.findall(block.text):
            said = number[0] or number[1]
            if not any(rounded(each, said) == said for each in times.values()):
                yield f"{study}: no place reads its text {said} times, but {times}"


def problems(entries: list[Entry]) -> Iterator[str]:
    """Yield what breaks the rule: on README and the pages of the book, and in the tests of the
    studies."""
    of_book = [entry for entry in entries if not entry["page"].startswith("docs/")]
    for entry in of_book:
        where = f"{entry['page']}: {folded(entry['sentence'])}"
        for problem in sorted({*unnamed(entry), *untold_places(entry, of_book)}):
            yield f"{where}\n  {problem}"
    for page in sorted({entry["page"] for entry in of_book}):
        for problem in (*untold_failures(page, of_book), *readings(page)):
            yield f"{page}: {problem}"
    for problem in unclaimed_numbers(SUMMARY, of_book):
        yield f"{SUMMARY}: {problem}"
    for page in sorted(BOOK.glob("*/README.md")):
        study = page.parent.name
        changed = stale(study) if file_of(f"{study}/tests.csv") else []
        if changed:
            yield (
                f"{study}/tests.csv: {len(changed)} numbers are not what results.csv gives, such as"
                f" {changed[0]}; write it by research/tables.py {study}"
            )
