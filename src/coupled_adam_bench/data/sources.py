"""The documents of a study's text, from files or from datasets of the Hugging Face hub, in a fixed
order.

A corpus of the hub may lie in the folder ``paths.hub_mirror``, which `fetch` fills and preparation
reads without the hub.
"""

from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from coupled_adam_bench.data.check import signature
from coupled_adam_bench.data.documents import RowError, file_documents
from coupled_adam_bench.data.hub import (
    HubFile,
    Listing,
    damage,
    download,
    list_place,
    listing_from_json,
)
from coupled_adam_bench.data.notes import left_out
from coupled_adam_bench.data.patience import PlaceError
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store.files import digest, read_sealed, write_sealed
from coupled_adam_bench.study.plan.inputs import text_files
from coupled_adam_bench.study.settings import FilesSource, HubSource, Study

BYTES_PER_TOKEN = 5.0
"""Bytes of text that are fetched for each token of ``data.max_tokens``; English text has 4 to 4.8
under GPT-2's BPE."""
_LISTING = "corpus.json"
_SHOWN = 10
"""Number of problems, or of what is left out, that are named one by one."""


class Position(NamedTuple):
    """How far a corpus is read."""

    file: int = 0
    """Number of the file that is being read, from 0."""
    document: int = 0
    """Documents of this file that are read, with those that are empty."""
    n_empty: int = 0
    """Documents of all files so far that are empty, only white space or null, which are skipped."""
    n_invalid: int = 0
    """Rows of all files so far that have no valid text, which ``data.skip: invalid`` skips."""
    n_files_without_text: int = 0
    """Files so far in which no document has text."""

    @property
    def left_out(self) -> dict[str, int]:
        """What was left out so far, as ``meta.json`` has it."""
        return {
            "n_empty_documents": self.n_empty,
            "n_invalid_documents": self.n_invalid,
            "n_files_without_text": self.n_files_without_text,
        }


START = Position()


class Corpus:
    """The documents of a source that have text, in a fixed order; it can be iterated once.

    ``position`` is the end of the last document that was given out, at the end the number of files.
    Files of a dataset of the hub are read in ``paths.hub_mirror``, or downloaded into ``downloads``
    one by one, and removed when they are read. What ``data.skip`` allows is left out and counted.
    Iteration raises ``ValueError`` for all other invalid input, with file, position and advice: for
    a dataset of the hub at once, and for files after the last one, with the first ten problems and
    their number.
    """

    def __init__(self, study: Study, downloads: Path | None = None) -> None:
        self._source, self._patterns, self._skip = (
            study.data.source,
            study.paths.text,
            study.data.skip,
        )
        self._downloads, self._minutes = downloads or Path(), study.execution.hub_minutes
        self._mirror = None
        if study.paths.hub_mirror is not None and isinstance(self._source, HubSource):
            self._mirror = corpus_folder(study.paths.hub_mirror, self._source)
        self._start = self.position = START
        self.shortfall: ValueError | None = None
        """Set if a mirror has only the first files: the texts may be enough for ``data.max_tokens``
        all the same."""
        self.skipped: list[str] = []
        """What the first ten rows and files lack that were left out since the start."""
        self._problems: list[ValueError] = []
        self._n_problems = 0

    @cached_property
    def listing(self) -> Listing | None:
        """The files of a dataset of the hub and the place that has them; None for other sources."""
        if not isinstance(self._source, HubSource):
            return None
        mirrored = None if self._mirror is None else read_listing(self._mirror)
        return mirrored or find_listing(self._source, self._minutes)

    def start_at(self, position: Position) -> None:
        """Begin after a ``position`` that was reached earlier; the files must be the same."""
        self._start = self.position = position

    def __iter__(self) -> Iterator[str]:
        if (listing := self.listing) is not None:
            files, name = self._hub_files(listing), f"dataset {listing.dataset}"
            text_field, txt_document = listing.place.text_field, "line"
        else:
            assert isinstance(self._source, FilesSource)
            files, name = self._text_files(), "paths.text"
            text_field, txt_document = self._source.text_field, self._source.txt_document
        n_given = 0
        for number, path, origin in files:
            skipped = self._start.document if number == self._start.file else 0
            n_before, n_problems = n_given, self._n_problems
            try:
                for text in self._texts_of(
                    number, origin, file_documents(path, origin, text_field, txt_document)
                ):
                    n_given += 1
                    # Files with a problem are read to their end, but only for other problems.
                    if not self._problems:
                        yield text
                # A file that an earlier run had begun has given text then.
                is_empty = n_given == n_before and skipped == 0
                if is_empty and self._n_problems == n_problems:
                    self._leave_out(_no_documents(origin), "empty")
                n_files_without_text = self.position.n_files_without_text + is_empty
                self.position = Position(number + 1, 0, *self.position[2:4], n_files_without_text)
            except ValueError as error:
                self._refuse(error)
        if self._problems:
            raise self._all_problems()
        if n_given == 0 and self._start == START:
            raise self._nothing(name)

    def _texts_of(
        self, number: int, origin: str, documents: Iterator[str | RowError]
    ) -> Iterator[str]:
        """Yield the documents of a file that have text and were not read before; count the
        others."""
        position = self.position
        skipped = self._start.document if number == self._start.file else 0
        for count, text in enumerate(documents, 1):
            if count <= skipped:
                continue
            if isinstance(text, RowError):
                self._leave_out(text, "invalid")
                position = position._replace(n_invalid=position.n_invalid + 1)
            elif not text or text.isspace():
                if self._skip == "nothing":
                    self._refuse(ValueError(f"{origin}: document {count} has no text; remove it"))
                position = position._replace(n_empty=position.n_empty + 1)
            else:
                position = self.position = position._replace(file=number, document=count)
                yield text
        self.position = position

    def _leave_out(self, problem: ValueError, kind: Literal["empty", "invalid"]) -> None:
        """Note what a row or a file lacks, or refuse it, as ``data.skip`` says."""
        if kind == "invalid" and self._skip != "invalid":
            self._refuse(ValueError(f"{problem}; data.skip: invalid leaves such rows out"))
        elif self._skip == "nothing":
            self._refuse(problem)
        elif len(self.skipped) < _SHOWN:
            self.skipped.append(str(problem).partition("; ")[0])

    def _refuse(self, problem: ValueError) -> None:
        """Raise what is wrong with a dataset of the hub; of files, go on and look for more of
        it."""
        if isinstance(self._source, HubSource):
            raise problem
        if not self._problems:
            say(
                "the text has a problem, so nothing is prepared; it is looked through for others,"
                " which are named then"
            )
        if len(self._problems) < _SHOWN:
            self._problems.append(problem)
        self._n_problems += 1

    def _all_problems(self) -> ValueError:
        """Return the only problem, or one error with the first ten and how many more there are."""
        if self._n_problems == 1:
            return self._problems[0]
        more = self._n_problems - len(self._problems)
        lines = [f"  {problem}" for problem in self._problems] + [f"  and {more:,} more"] * (
            more > 0
        )
        return ValueError(
            f"paths.text: {self._n_problems:,} problems in the text\n" + "\n".join(lines)
        )

    def _nothing(self, name: str) -> ValueError:
        """Return the error for a source in which nothing has text."""
        problems = "".join(f"\n  {problem}" for problem in self.skipped)
        return ValueError(f"{name}: no document in it has text{problems}")

    def left_out(self, end: Position) -> str | None:
        """Return in a sentence what was left out up to a position; None if nothing was."""
        said = left_out(self._skip, end.left_out)
        return None if said is None else said + "".join(f"\n  {place}" for place in self.skipped)

    def _text_files(self) -> Iterator[tuple[int, Path, str]]:
        for number, (_, path) in enumerate(text_files(self._patterns)):
            if number >= self._start.file:
                yield number, path, str(path)

    def _hub_files(self, listing: Listing) -> Iterator[tuple[int, Path, str]]:
        for number, file in enumerate(listing.files):
            if number < self._start.file:
                continue
            mirrored = None if self._mirror is None else mirrored_file(self._mirror, file)
            try:
                path = mirrored or download(listing, file, self._downloads, self._minutes)
            except ValueError as error:
                if number == 0 or self._mirror is None:
                    raise
                self.shortfall = ValueError(
                    f"{error}. Of {len(listing.files)} files the first {number} are in"
                    f" {self._mirror}; for more of a text that data.max_tokens caps, give `fetch` a"
                    " larger --bytes-per-token"
                )
                return
            hashed = signature(path)
            yield number, path, f"dataset {listing.dataset}, {file.path}"
            if signature(path) != hashed:
                raise ValueError(f"{path}: changed while it was read; start again")
            if mirrored is None:
                path.unlink()


def _no_documents(origin: str) -> ValueError:
    return ValueError(
        f"{origin}: no documents in it: it is empty or has only empty texts; remove or replace it"
    )


def find_listing(source: HubSource, minutes: float) -> Listing:
    """Return the files of the first place that has the dataset; ``ValueError`` that says why none
    of them has."""
    problems = []
    for place in source.places:
        try:
            return list_place(place, minutes)
        except PlaceError as error:
            problems.append(str(error))
            if len(source.places) > 1:
                say(f"data.source.preset {source.preset}: {error}")
    raise ValueError("data.source: " + "\n  ".join(problems))


# ---- corpora of the hub in a mirror ----


def corpus_folder(mirror: str, source: HubSource) -> Path:
    """Return the folder of a corpus within a mirror."""
    name = (source.preset or source.dataset or "").replace("/", "--")
    return Path(mirror) / "corpora" / f"{name}-{digest(source.model_dump())}"


def read_listing(folder: Path) -> Listing | None:
    """Return the files of a corpus in a mirror, some of which may not be there; None if it has not
    the corpus."""
    path = folder / _LISTING
    return listing_from_json(read_sealed(path)) if path.is_file() else None


def mirrored_file(folder: Path, file: HubFile) -> Path | None:
    """Return the path of a corpus's file in a mirror, None if it is not there; ``ValueError`` if it
    is damaged."""
    path = folder / file.path
    if not path.is_file():
        return None
    if problem := damage(path, file):
        raise ValueError(
            f"paths.hub_mirror: {path}: {problem}; delete it and run the target `fetch` again"
        )
    return path


def open_corpus(folder: Path, source: HubSource, minutes: float) -> Listing:
    """Return the files of a corpus, of the commit at which it was begun to be fetched if it was."""
    listing = read_listing(folder)
    if listing is None:
        listing = find_listing(source, minutes)
        write_sealed(folder / _LISTING, asdict(listing))
    return listing
