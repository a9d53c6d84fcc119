"""The documents of a study's text, from files or from datasets of the Hugging Face hub, in a fixed order.

A corpus of the hub may lie in the folder ``paths.hub_mirror``, which `fetch` fills and preparation reads without the
hub.
"""

from collections.abc import Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from coupled_adam_bench.data.documents import file_documents
from coupled_adam_bench.data.hub import HubFile, Listing, PlaceError, damage, download, list_place, listing_from_json
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store.files import digest, read_sealed, write_sealed
from coupled_adam_bench.study.config import FilesSource, HubSource, Study
from coupled_adam_bench.study.inputs import text_files

BYTES_PER_TOKEN = 5.0
"""Bytes of text that are fetched for each token of ``data.max_tokens``; English text has 4 to 4.8 under GPT-2's BPE."""
_LISTING = "corpus.json"


class Position(NamedTuple):
    """How far a corpus is read."""

    file: int = 0
    """Number of the file that is being read, from 0."""
    document: int = 0
    """Documents of this file that are read, with those that are empty."""
    n_empty: int = 0
    """Documents of all files so far that are empty or only white space, which are skipped."""


START = Position()


class Corpus:
    """The documents of a source that have text, in a fixed order; it can be iterated once.

    ``position`` is the end of the last document that was given out, and ``n_files`` the number of files that were read
    to their end. Files of a dataset of the hub are read in ``paths.hub_mirror``, or downloaded into ``downloads`` one
    by one, and removed when they are read. Iteration raises ``ValueError`` for invalid input, with its file, its
    position and advice.
    """

    def __init__(self, study: Study, downloads: Path | None = None) -> None:
        self._source, self._patterns = study.data.source, study.paths.text
        self._downloads, self._minutes = downloads or Path(), study.execution.hub_minutes
        self._mirror = None
        if study.paths.hub_mirror is not None and isinstance(self._source, HubSource):
            self._mirror = corpus_folder(study.paths.hub_mirror, self._source)
        self._start = self.position = START
        self.n_files = 0
        self.shortfall: ValueError | None = None
        """Set if a mirror has only the first files: the texts may be enough for ``data.max_tokens`` all the same."""

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
            files, name = self._text_files(), ""
            text_field, txt_document = self._source.text_field, self._source.txt_document
        n_given = 0
        for number, path, origin in files:
            n_empty, n_before = self.position.n_empty, n_given
            skipped = self._start.document if number == self._start.file else 0
            for count, text in enumerate(file_documents(path, origin, text_field, txt_document), 1):
                if count <= skipped:
                    continue
                if text and not text.isspace():
                    n_given += 1
                    self.position = Position(number, count, n_empty)
                    yield text
                else:
                    n_empty += 1
            self.position = self.position._replace(n_empty=n_empty)
            self.n_files = number + 1
            if listing is None and n_given == n_before:
                raise _no_documents(origin)
        if n_given == 0 and self._start == START:
            raise _no_documents(name)

    def _text_files(self) -> Iterator[tuple[int, Path, str]]:
        for number, (_, path) in enumerate(text_files(self._patterns)):
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
                    f"{error}. Of {len(listing.files)} files the first {number} are in {self._mirror}; for more of a "
                    "text that data.max_tokens caps, give `fetch` a larger --bytes-per-token"
                )
                return
            yield number, path, f"dataset {listing.dataset}, {file.path}"
            if mirrored is None:
                path.unlink()


def _no_documents(origin: str) -> ValueError:
    return ValueError(f"{origin}: no documents in it: it is empty or has only empty texts; remove or replace it")


def find_listing(source: HubSource, minutes: float) -> Listing:
    """Return the files of the first place that has the dataset; ``ValueError`` that says why none of them has."""
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
    """Return the files of a corpus in a mirror, some of which may not be there; None if it has not the corpus."""
    path = folder / _LISTING
    return listing_from_json(read_sealed(path)) if path.is_file() else None


def mirrored_file(folder: Path, file: HubFile) -> Path | None:
    """Return the path of a corpus's file in a mirror, None if it is not there; ``ValueError`` if it is damaged."""
    path = folder / file.path
    if not path.is_file():
        return None
    if problem := damage(path, file):
        raise ValueError(f"paths.hub_mirror: {path}: {problem}; delete it and run the target `fetch` again")
    return path


def open_corpus(folder: Path, source: HubSource, minutes: float) -> Listing:
    """Return the files of a corpus, of the commit at which it was begun to be fetched if it was."""
    listing = read_listing(folder)
    if listing is None:
        listing = find_listing(source, minutes)
        write_sealed(folder / _LISTING, asdict(listing))
    return listing
