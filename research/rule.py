"""The rule of the book: what a sentence that rests on numbers of a study says along with them.

- A number names its batch, its number of training tokens and its rate. What is the same at all
  places of the study may stand once on the page of the study, or in the section of another page.
- Where the same contrast has another sign, or an interval that holds 0, at another place of the
  study, the paragraph or list item of the sentence names these places too: it has a claim of each.
- Optimizers that differ in their rates are not said to differ in one thing alone.
- A hypothesis that failed is told where the confirmed ones are: all of them on the page of the
  study, and on another page those of the same metric that share an optimizer with a confirmed one.
- A sentence of the book with a decimal number has a claim, or, on the page that sums up the book, a
  link.
- How often a page says that its text is read is what the numbers of tokens give.
- Words that promise more than one line are held to it. Where a sentence says *every, all, each, no,
  none* or *nobody*, one of its claims has ``every=``. An *own rate* was chosen at the number of
  tokens that the claim names, and *as much* has both ends of an interval. What stands in bold on a
  page of the book has a claim.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from claims import file_of, lines_of, read, rounded
from pages import BOOK, ROOT, SUMMARY, Entry, block_of, blocks_of, prose
from places import (
    Claimed,
    batch_of,
    claimed,
    elsewhere,
    groups_of,
    has_results,
    kind,
    like,
    rate_of,
    stale,
    times_read,
)

from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.study.plan.cells import Cell

PAPER_BATCH, PAPER_RATE = 98_304, 6e-4
"""The batch of the paper and, for its smallest model, whose rate the head alone has, the rate."""
READ_TIMES = re.compile(r"\b(?:read|drawn) ([\d.]*\d) times|([\d.]*\d)\s+passes over the text")
DECIMAL = re.compile(r"(?<![\w.])-?\d+\.\d")
SIGN = re.compile(r"\b(paired_)?(difference|low|high)[<>~]")
"""The condition of a claim that says which of two optimizers has more."""
TOKENS = re.compile(r"[\d.]*\d([KMB]\b| million)")
SETTING = re.compile(r"(beta2|beta1) (=|of) [\d.]*\d")
QUANTIFIER = re.compile(r"\b(every|all|each|no|none|nobody)\b", re.IGNORECASE)
OWN_RATE = re.compile(r"\bown (learning )?rates?\b", re.IGNORECASE)
HEADLINE = re.compile(r"\*\*([^*]+\.)\*\*")


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
    block, sentence = block_of(entry), entry.sentence
    has_number = DECIMAL.search(SETTING.sub("", sentence))
    for claim in entry.claims if has_number else ():
        _, wanted, _ = read(claim)
        # What is said of every number of tokens names none.
        is_every = "n_tokens" in wanted.get("every", "")
        for one in claimed(claim):
            own = entry.path.parent.name == one.study
            wide = block.section + (block.head if own else "")
            # Where all runs have as many steps, these say once how many tokens a batch makes of it.
            steps = f"{one.group.first.steps:,} steps"
            has_steps = steps in wide and not varies(one, "steps")
            for what, names in NAMES.items():
                # The rows of a table have in common what stands above them.
                is_row = block.text.startswith("|")
                text = block.text if varies(one, what) and not is_row else wide
                is_said = names is names_tokens and (has_steps or is_every)
                for cell in one.cells:
                    if not is_said and not names(text, cell):
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
        if each.page == entry.page and block_of(each) == block
        for claim in each.claims
    ]
    found = [one for claim in claims if SIGN.search(claim) for one in claimed(claim)]
    told = {place_of(one.study, one.group, one.metric, one.optimizers) for one in found}
    for claim in entry.claims:
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
        if entry.page == page
        for claim in entry.claims
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
    """Yield the sentences with a number that no claim has and no link gives: on the page that sums
    up the book, and among what the page of a study found and did not find."""
    said = [entry.sentence for entry in entries if entry.page == page]
    of_study = page != SUMMARY
    for block in blocks_of(ROOT / page):
        is_found = block.section.startswith((" ## Found", " ## Not found"))
        for sentence in block.sentences if is_found or not of_study else ():
            text = SETTING.sub("", sentence)
            # What a study read and how often is no result.
            text = READ_TIMES.sub("", TOKENS.sub("", text)) if of_study else text
            has_number = DECIMAL.search(text) and "](" not in sentence
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


def unkept(entry: Entry) -> Iterator[str]:
    """Yield what a sentence promises and its claims do not cover."""
    sentence = entry.sentence
    if QUANTIFIER.search(sentence) and not any("every=" in claim for claim in entry.claims):
        yield "no claim with every="
    has_interval = any("low~" in claim and "high~" in claim for claim in entry.claims)
    if "as much" in sentence and not has_interval:
        yield "no interval"
    if OWN_RATE.search(sentence) and not any(map(is_chosen_there, entry.claims)):
        yield "the rate was chosen at other numbers of tokens"


def loose(page: str, entries: list[Entry]) -> Iterator[str]:
    """Yield the headlines of a page, and its sentences on own rates, that no claim has."""
    said = [entry.sentence for entry in entries if entry.page == page]
    for block in blocks_of(ROOT / page):
        for sentence in block.sentences:
            if OWN_RATE.search(sentence) and not any(sentence in each for each in said):
                yield f"no claim: {sentence}"
    for headline in HEADLINE.findall(prose(ROOT / page)) if page != "README.md" else ():
        if not any(headline in each for each in said):
            yield f"no claim: {headline}"


def problems(entries: list[Entry]) -> Iterator[str]:
    """Yield what breaks the rule: on README, the pages of the book and of docs, and in the tests of
    the studies."""
    for entry in entries:
        found = {*unkept(entry)}
        # A page of docs shows a number as an example of where it comes from.
        if not entry.page.startswith("docs/"):
            found |= {*unnamed(entry), *untold_places(entry, entries)}
        for problem in sorted(found):
            yield f"{entry.page}: {entry.sentence}\n  {problem}"
    for page in sorted({entry.page for entry in entries}):
        for problem in (*untold_failures(page, entries), *readings(page)):
            yield f"{page}: {problem}"
    for path in sorted(BOOK.glob("**/README.md")):
        page = path.relative_to(ROOT).as_posix()
        for problem in (*unclaimed_numbers(page, entries), *loose(page, entries)):
            yield f"{page}: {problem}"
    for study in sorted(page.parent.name for page in BOOK.glob("*/README.md")):
        changed = stale(study) if file_of(f"{study}/tests.csv") else []
        if changed:
            yield (
                f"{study}/tests.csv: {len(changed)} numbers are not what results.csv gives, such as"
                f" {changed[0]}; write it by research/tables.py {study}"
            )
