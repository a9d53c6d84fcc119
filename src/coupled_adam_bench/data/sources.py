"""The documents of a study's text, from files or from datasets of the Hugging Face hub, in a fixed order.

A corpus of the hub may lie in the folder ``paths.hub_mirror``, which `fetch` fills and preparation reads without the
hub.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from coupled_adam_bench.data.documents import file_documents, text_bytes
from coupled_adam_bench.data.hub import HubFile, Listing, damage, download, list_place, listing_from_json, name_of
from coupled_adam_bench.data.transport import HubAwayError, Patience, PlaceError
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store.files import digest, read_sealed, write_sealed
from coupled_adam_bench.store.locks import folder_lock
from coupled_adam_bench.study.config import FilesSource, HubSource, Study
from coupled_adam_bench.study.inputs import text_files

BYTES_PER_TOKEN = 5.0
"""Bytes of text that are fetched for each token of ``data.max_tokens``; English text has 4 to 4.8 under GPT-2's BPE."""
_LISTING = "corpus.json"
_FETCHED = "fetched.jsonl"


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
        self._source = study.data.source
        self._patterns = study.paths.text
        self._downloads = downloads
        self._patience = Patience(study.execution.hub_minutes)
        self._mirror = None
        if study.paths.hub_mirror is not None and isinstance(self._source, HubSource):
            self._mirror = corpus_folder(study.paths.hub_mirror, self._source)
        self._start = self.position = START
        self.n_files = 0
        self.shortfall: ValueError | None = None
        """Set if a mirror has only the first files: the texts may be enough for ``data.max_tokens`` all the same."""

    @property
    def n_empty(self) -> int:
        """Number of documents so far that are empty or only white space, which are skipped."""
        return self.position.n_empty

    @cached_property
    def listing(self) -> Listing | None:
        """The files of a dataset of the hub and the place that has them; None for other sources."""
        if not isinstance(self._source, HubSource):
            return None
        mirrored = None if self._mirror is None else read_listing(self._mirror)
        return mirrored or find_listing(self._source, self._patience)

    def start_at(self, position: Position) -> None:
        """Begin after a ``position`` that was reached earlier; the files must be the same."""
        self._start = self.position = position

    def __iter__(self) -> Iterator[str]:
        if self.listing is not None:
            yield from self._hub_documents(self.listing)
            return
        assert isinstance(self._source, FilesSource)
        for number, (_, path) in enumerate(text_files(self._patterns)):
            documents = file_documents(path, str(path), self._source.text_field, self._source.txt_document)
            yield from self._with_text(documents, number)
            if self._n_given == 0:
                raise _no_documents(str(path))

    def _hub_documents(self, listing: Listing) -> Iterator[str]:
        place, n_given = listing.place, 0
        if self._downloads is None and not listing.is_local:
            raise AssertionError("a dataset of the hub needs a folder for its files")
        for number, file in enumerate(listing.files):
            if number < self._start.file:
                continue
            mirrored = None if self._mirror is None else mirrored_file(self._mirror, file)
            try:
                path = mirrored or download(listing, file, self._downloads or Path(), self._patience)
            except ValueError as error:
                if number == 0 or self._mirror is None:
                    raise
                self.shortfall = ValueError(
                    f"{error}. Of {len(listing.files)} files the first {number} are in {self._mirror}; for more of a "
                    "text that data.max_tokens caps, give `fetch` a larger --bytes-per-token"
                )
                return
            origin = str(path) if listing.is_local else f"dataset {listing.dataset}, {file.path}"
            yield from self._with_text(file_documents(path, origin, place.text_field, "line"), number)
            n_given += self._n_given
            if mirrored is None and not listing.is_local:
                path.unlink()
        if n_given == 0 and self._start == START:
            raise _no_documents(f"dataset {listing.dataset}")

    def _with_text(self, documents: Iterator[str], number: int) -> Iterator[str]:
        """Yield the documents of file ``number`` that have text, after those that were read earlier."""
        n_empty, self._n_given = self.position.n_empty, 0
        skipped = self._start.document if number == self._start.file else 0
        for count, text in enumerate(documents, 1):
            if count <= skipped:
                continue
            if text and not text.isspace():
                self._n_given += 1
                self.position = Position(number, count, n_empty)
                yield text
            else:
                n_empty += 1
        self.position = self.position._replace(n_empty=n_empty)
        self.n_files = number + 1


def _no_documents(origin: str) -> ValueError:
    return ValueError(f"{origin}: no documents in it: it is empty or has only empty texts; remove or replace it")


# ---- corpora of the hub, and those in a mirror ----


def find_listing(source: HubSource, patience: Patience) -> Listing:
    """Return the files of the first place that has the dataset; ``ValueError`` that says why none of them has."""
    problems = []
    for place in source.places:
        try:
            listing = list_place(place, patience)
            if place.gigabytes is not None and not 0.9 < listing.n_bytes / 1e9 / place.gigabytes < 1.1:
                known = f"{listing.n_bytes / 1e9:,.1f} GB, and had {place.gigabytes:,} when it was last seen"
                say(f"{name_of(place)} has {known}")
            return listing
        except HubAwayError:
            raise
        except ValueError as error:
            problems.append(str(error))
            if not isinstance(error, PlaceError):
                break
            if len(source.places) > 1:
                say(f"data.source.preset {source.preset}: {error}")
    raise ValueError("data.source: " + "\n  ".join(problems))


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


def open_corpus(folder: Path, source: HubSource, patience: Patience) -> Listing:
    """Return the files of a corpus, of the commit at which it was begun to be fetched if it was."""
    listing = read_listing(folder)
    if listing is None:
        listing = find_listing(source, patience)
        write_sealed(folder / _LISTING, asdict(listing))
    return listing


def fetch_corpus(folder: Path, listing: Listing, needed: float | None, patience: Patience) -> None:
    """Download the first files of a corpus until they have ``needed`` bytes of text, or all; keep those that are there.

    A file that is there was compared with its checksum when it was downloaded, and is again when it is read.
    """
    with folder_lock(folder):
        fetched = _read_fetched(folder / _FETCHED)
        n_text = 0
        for file in listing.files:
            if needed is not None and n_text >= needed:
                return
            path = folder / file.path
            if file.path not in fetched or not path.is_file() or path.stat().st_size != file.bytes:
                say(f"fetch {file.path}, {file.bytes / 1e9:.3f} GB; text so far: {n_text / 1e9:.3f} GB")
                download(listing, file, folder, patience)
                # A column that is missing, or holds no text, is known before the next file is fetched.
                origin = f"{file.path} of {listing.dataset!r}"
                next(file_documents(path, origin, listing.place.text_field, "line"), None)
                fetched[file.path] = text_bytes(path, listing.place.text_field) if needed is not None else 0
                with (folder / _FETCHED).open("a", encoding="utf-8") as record:
                    record.write(json.dumps({"path": file.path, "text_bytes": fetched[file.path]}) + "\n")
            n_text += fetched[file.path]


def _read_fetched(path: Path) -> dict[str, int]:
    """Return the bytes of text of the files that were fetched; a line that a killed process left unfinished is none."""
    fetched = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        with suppress(ValueError, KeyError, TypeError):
            row = json.loads(line)
            fetched[row["path"]] = int(row["text_bytes"])
    return fetched
