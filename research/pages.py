"""The pages that rest on results, and their sentences with claims.

Beside a page ``NAME.md`` lies ``NAME.claims``. It has the sentences that rest on results, each by
its first and its last words, and below it, indented, the claims, of which ``claims.py`` says how
they are written:

    **Rarest tokens.** Coupled … 98,304 (0.42 to 0.46). [a1b2c3]
        results.csv seeds=3 metric=loss_rarest n_tokens=196608000 difference~0.44

The first words stand on the page once. The sum is that of all words from the first to the last,
so whoever changes one looks at the claims again, and writes the sum that ``make claims`` prints. A
short sentence stands there whole, without a sum. For a new sentence write all of it: ``make
claims`` prints its short form. A file without the name of a study is one of the study whose page it
is.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

BOOK = Path(__file__).parent
ROOT = BOOK.parent
SUMMARY = "research/README.md"
SHORT = 8
"""The words of the longest sentence that stands whole among the claims."""
KEY = re.compile(r"(?P<first>.+) … (?P<last>.+) \[(?P<sum>[0-9a-f]{6})\]")
UNSHOWN = re.compile(r"<!--.*?-->", re.DOTALL)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def need(condition: object, message: str) -> None:
    """Raise ``ValueError`` with a message if a condition does not hold."""
    if not condition:
        raise ValueError(message)


def folded(text: str) -> str:
    """Return a text on one line."""
    return re.sub(r"\s+", " ", text).strip()


@cache
def prose(page: Path) -> str:
    """Return a page on one line, without comments."""
    return folded(UNSHOWN.sub("", page.read_text(encoding="utf-8")))


def sum_of(text: str) -> str:
    """Return the sum of a sentence: a change of any word changes it."""
    return hashlib.sha256(text.encode()).hexdigest()[:6]


@dataclass(frozen=True)
class Entry:
    """A sentence of a page, or some that follow each other, with its claims."""

    page: str
    """The path of the page in the repository."""
    key: str
    """The first and the last words with the sum, or a short sentence."""
    claims: tuple[str, ...]

    @property
    def path(self) -> Path:
        """Where the page lies."""
        return ROOT / self.page

    @property
    def sentence(self) -> str:
        """The sentence as it stands on its page; ``ValueError`` if it is not there any more."""
        return _sentence(self.path, self.key)


@cache
def _sentence(path: Path, key: str) -> str:
    page, parts = prose(path), KEY.fullmatch(key)
    first = parts["first"] if parts else key
    need(page.count(first) == 1, f"the page has {page.count(first)} sentences with: {first}")
    if parts is None:
        if len(key.split()) > SHORT:
            raise ValueError(f"name it by: {short(page, key)}")
        return key
    sentence = between(page, first, parts["last"])
    need(sentence, f"the page has no such sentence any more: {key}")
    need(
        sum_of(sentence) == parts["sum"],
        f"another sentence, of the sum {sum_of(sentence)}; look at its claims again: {sentence}",
    )
    return sentence


def between(page: str, first: str, last: str) -> str:
    """Return what a page has from the first words to the last ones, or nothing."""
    start = page.index(first)
    end = page.find(last, start + len(first))
    return page[start : end + len(last)] if end > 0 else ""


def short(page: str, sentence: str) -> str:
    """Return the first and last words, as few as tell a sentence of a page from others, and its
    sum."""
    words = sentence.split()
    firsts = (" ".join(words[:n]) for n in range(3, len(words)))
    first = next(each for each in firsts if page.count(each) == 1)
    lasts = (" ".join(words[-n:]) for n in range(2, len(words)))
    last = next(each for each in lasts if between(page, first, each) == sentence)
    return f"{first} … {last} [{sum_of(sentence)}]"


def entries() -> list[Entry]:
    """Return the sentences that rest on results, page by page; ``ValueError`` for claims without a
    page or a sentence."""
    files = (ROOT.glob(where) for where in ("*.claims", "docs/*.claims", "research/**/*.claims"))
    return [entry for found in files for file in sorted(found) for entry in read_entries(file)]


def read_entries(file: Path) -> Iterator[Entry]:
    """Yield the sentences of a page, given the file with its claims."""
    page, study = file.with_suffix(".md"), file.parent.name
    need(page.is_file(), f"{file}: {page.name} is no page")
    blocks = re.split(r"\n\n+", file.read_text(encoding="utf-8").strip())
    for key, *lines in (block.splitlines() for block in blocks):
        is_claimed = lines and all(line.startswith("    ") for line in lines)
        need(is_claimed and key[0] != " ", f"{file}: a sentence, and its claims indented: {key}")
        claims = []
        for line in map(str.strip, lines):
            is_own = "/" not in line.partition(" ")[0]
            claims.append(f"{study}/{line}" if is_own else line)
        yield Entry(page.relative_to(ROOT).as_posix(), key, tuple(claims))


@dataclass(frozen=True)
class Block:
    """A paragraph or a list item of a page, on one line, with all of its section up to its end and
    what stands above the first section."""

    text: str
    section: str
    head: str

    @property
    def sentences(self) -> list[str]:
        """The sentences of a paragraph or list item; none of a table, a heading or a figure."""
        if self.text.startswith(("|", "#", "!")):
            return []
        return re.split(r"(?<=[.!?])\s+(?=[A-Z*])", self.text.removeprefix("- "))


@cache
def blocks_of(page: Path) -> tuple[Block, ...]:
    """Return the paragraphs and list items of a page."""
    text = FENCE.sub("", UNSHOWN.sub("", page.read_text(encoding="utf-8")))
    sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    found = []
    for section in sections:
        above = ""
        for block in re.split(r"\n\s*\n|\n(?=\s*- )|\n(?=[|#])", section):
            above = f"{above} {folded(block)}"
            found.append(Block(folded(block), above, folded(sections[0])))
    return tuple(found)


@cache
def block_of(entry: Entry) -> Block:
    """Return the paragraph or list item of a sentence; one that spans several has their text."""
    blocks = blocks_of(entry.path)
    for block in blocks:
        if entry.sentence in block.text:
            return block
    (first, *_) = [block for block in blocks if entry.sentence in block.section] or blocks[-1:]
    return Block(first.section, first.section, first.head)
