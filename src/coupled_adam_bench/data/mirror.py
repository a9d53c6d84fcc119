"""Corpora of the hub in the folder ``paths.hub_mirror``, which `fetch` fills and preparation reads without the hub."""

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from coupled_adam_bench.data.documents import file_documents, text_bytes
from coupled_adam_bench.data.hub import HubFile, Listing, damage, download, find_listing, listing_from_json
from coupled_adam_bench.data.patience import Patience
from coupled_adam_bench.store.files import digest, read_sealed, write_sealed
from coupled_adam_bench.store.locks import folder_lock
from coupled_adam_bench.study.config import HubSource

BYTES_PER_TOKEN = 5.0
"""Bytes of text that are fetched for each token of ``data.max_tokens``; English text has 4 to 4.8 under GPT-2's BPE."""
_LISTING = "corpus.json"
_FETCHED = "fetched.jsonl"


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


def text_needed(max_tokens: int | None, bytes_per_token: float) -> float | None:
    """Return the bytes of text that are enough for ``max_tokens``; None if all is needed."""
    return None if max_tokens is None else max_tokens * bytes_per_token


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
