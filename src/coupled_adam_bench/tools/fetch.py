"""``fetch``: downloads what a study needs into the folders of ``paths``, for jobs on machines
without a network."""

import io
import json
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

from coupled_adam_bench.data.documents import RowError, file_documents, text_bytes
from coupled_adam_bench.data.hub import Listing, download, list_place
from coupled_adam_bench.data.patience import BY_FETCH, PlaceError
from coupled_adam_bench.data.sources import corpus_folder, open_corpus
from coupled_adam_bench.data.tokenizers import GPT2_BYTES, download_gpt2, mirrored_gpt2, read_gpt2
from coupled_adam_bench.evaluation.as_written import json_rows
from coupled_adam_bench.evaluation.settings import downstream_of
from coupled_adam_bench.evaluation.task_data import HubData, hub_data
from coupled_adam_bench.evaluation.task_files import find_tasks
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store.files import atomic_path, sha256_file, write_bytes
from coupled_adam_bench.store.locks import folder_lock
from coupled_adam_bench.study.catalogue.presets import (
    TASK_REVISIONS,
    WORD_LISTS,
    Home,
    Place,
    WordList,
)
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.settings import HubSource, Study
from embedding_geometry.transport import read_url

_WORD_LIST_BYTES = 10**6
_ARCHIVE_BYTES = 2**24
_WORD_LIST_MINUTES = 2.0


@dataclass
class Item:
    """Something to fetch."""

    name: str
    target: Path
    bytes: int
    """Bytes that it takes at most; with those that are there."""
    fetch: Callable[[], None]
    """Fetches what of it is not there yet."""


def fetch(plan: Plan, *, dry_run: bool = False, bytes_per_token: float) -> None:
    """Download what the studies of a plan need and what is not there yet; say before what it takes.

    ``dry_run`` only says it. Raises ``ValueError`` for a study without ``paths.hub_mirror``, for
    what the hub does not have, and if the disk has too little space.
    """
    items: dict[Path, Item] = {}
    missing: list[str] = []
    for study in plan.studies.values():
        for item in _items(study, bytes_per_token, missing):
            items.setdefault(item.target, item)
    if not items and not missing:
        print("nothing to fetch: the study needs nothing from outside, or all of it is there")
        return
    # A disk that is too small is found before hours of downloading, and not in the midst of them.
    for item in items.values():
        _check_space(item)
    if dry_run:
        return
    for item in items.values():
        say(f"fetch {item.name}")
        with _tried(missing):
            item.fetch()
    if missing:
        listed = "\n".join(f"  {line}" for line in dict.fromkeys(missing))
        raise ValueError(
            f"{len(dict.fromkeys(missing))} things could not be had; all else is there\n{listed}"
        )
    print(
        "fetched; jobs find it under paths.hub_mirror and paths.word_similarity, and need no"
        " network"
    )


@contextmanager
def _tried(missing: list[str]) -> Iterator[None]:
    """Note in ``missing`` why something cannot be had, which is told once, at the end; go on."""
    try:
        yield
    except ValueError as error:
        missing.append(str(error).replace(BY_FETCH, ""))


def _items(study: Study, bytes_per_token: float, missing: list[str]) -> list[Item]:
    """Return what a study needs and what is not there yet; what cannot be had is noted in
    ``missing``."""
    source, minutes = study.data.source, study.execution.hub_minutes
    items = _word_lists(study)
    needs_gpt2 = study.data.tokenizer == "gpt2" and study.paths.tokenizer is None
    has_tasks = study.evaluation.downstream_of_files is not None
    # All else goes into the mirror, so a study that needs none of it needs no mirror.
    if not (isinstance(source, HubSource) or has_tasks or needs_gpt2):
        return items
    if study.paths.hub_mirror is None:
        raise ValueError(
            f"paths.hub_mirror: not set in study {study.name!r}; set it to the folder that `fetch`"
            " fills and that jobs read, for example with --config 'paths={hub_mirror: data/hub}'"
        )
    mirror = Path(study.paths.hub_mirror)
    gpt2 = mirrored_gpt2(study.paths.hub_mirror)
    if needs_gpt2 and not gpt2.is_file():
        items.append(
            Item("GPT-2's tokenizer", gpt2, GPT2_BYTES, partial(_fetch_gpt2, gpt2, minutes))
        )
    if has_tasks:
        items += _task_data(study, mirror, missing)
    if isinstance(source, HubSource):
        with _tried(missing):
            folder = corpus_folder(study.paths.hub_mirror, source)
            listing = open_corpus(folder, source, minutes)
            needed = (
                None if study.data.max_tokens is None else study.data.max_tokens * bytes_per_token
            )
            name = f"{listing.dataset} ({listing.place.license}), commit {listing.commit}"
            n_bytes = listing.n_bytes if needed is None else min(listing.n_bytes, int(needed))
            items.append(
                Item(
                    name, folder, n_bytes, partial(_fetch_corpus, folder, listing, needed, minutes)
                )
            )
    return items


def _check_space(item: Item) -> None:
    """Print what is to be fetched; ``ValueError`` if its disk has too little space."""
    missing = max(0, item.bytes - _size(item.target))
    there = next(
        folder for folder in (item.target, *item.target.absolute().parents) if folder.exists()
    )
    free = shutil.disk_usage(there).free
    needed = f"at most {missing / 1e9:.3f} GB to fetch, and {free / 1e9:.3f} GB are free at {there}"
    print(f"{item.name}: {needed}", flush=True)
    if missing > free:
        raise ValueError(
            f"paths.hub_mirror: {needed}; free some, set it to a folder on another disk, or lower"
            " data.max_tokens"
        )


def _size(folder: Path) -> int:
    """Return the bytes of all files in a folder; 0 for one that is not there."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _fetch_gpt2(target: Path, minutes: float) -> None:
    download_gpt2(minutes, target.parent)
    try:
        read_gpt2(target)
    except ValueError:
        target.unlink()
        raise


def _fetch_corpus(folder: Path, listing: Listing, needed: float | None, minutes: float) -> None:
    """Download the first files of a corpus until they have ``needed`` bytes of text, or all; keep
    those that are there.

    How much text a file has is estimated from the first one that is not empty. A file that is there
    was compared with its checksum when it was downloaded, and is again when it is read.
    """
    enough, n_bytes, text_field = float(listing.n_bytes), 0, listing.place.text_field
    with folder_lock(folder):
        for file in listing.files:
            if n_bytes >= enough:
                return
            path = folder / file.path
            if not path.is_file() or path.stat().st_size != file.bytes:
                say(
                    f"fetch {file.path}, {file.bytes / 1e9:.3f} GB of at most {enough / 1e9:.3f} GB"
                )
                download(listing, file, folder, minutes)
            if n_bytes == 0:
                # A column that is missing, or holds no text, is known before the next file is
                # fetched.
                documents = file_documents(
                    path, f"{file.path} of {listing.dataset!r}", text_field, "line"
                )
                first = next(documents, "")
                if isinstance(first, RowError) and not any(
                    isinstance(document, str) for document in documents
                ):
                    raise first
                if needed is not None and file.bytes > 0:
                    enough = needed * file.bytes / max(1, text_bytes(path, text_field))
            n_bytes += file.bytes


def _task_data(study: Study, mirror: Path, missing: list[str]) -> list[Item]:
    """Return the data of the downstream tasks that are not in the mirror."""
    downstream, minutes, items = downstream_of(study), study.execution.hub_minutes, []
    for task in find_tasks(downstream.tasks, study.paths.tasks, downstream.task_versions):
        data = hub_data(task, downstream.num_fewshot)
        for split in () if data is None else data.needed:
            assert data is not None
            file = data.file(mirror, split)
            if file.is_file():
                continue
            with _tried(missing):
                listing = _list_task_data(task.name, data, split, file, minutes)
                name, write = (
                    f"task {task.name}, {data.dataset}, {split}",
                    partial(_write_task_data, listing, file),
                )
                # Lines of JSON are larger than parquet.
                items.append(Item(name, file, 5 * listing.n_bytes, partial(write, minutes)))
    return items


def _list_task_data(name: str, data: HubData, split: str, file: Path, minutes: float) -> Listing:
    """Return the files of a split of a task's data; ``ValueError`` that says why they cannot be
    read."""
    try:
        return list_place(
            Place(data.dataset, TASK_REVISIONS.get(data.dataset), data.config_name, split), minutes
        )
    except PlaceError as error:
        raise ValueError(
            f"evaluation.downstream.tasks: {name}: {error.problem}; put its rows as lines of JSON"
            f" at {file}, or a task file that reads another data set into paths.tasks"
        ) from error


def _write_task_data(listing: Listing, file: Path, minutes: float) -> None:
    """Write the rows of a split as lines of JSON, whole or not at all.

    Fields of JSON are copied as they stand. Those of parquet have the types that it says, and its
    dates and times are written as lm-eval would print them.
    """
    import datasets

    with tempfile.TemporaryDirectory(prefix="coupled-adam-bench-") as folder:
        paths = [str(download(listing, part, Path(folder), minutes)) for part in listing.files]
        rows: Iterable[dict[str, Any]]
        if paths[0].endswith(".parquet"):
            rows = datasets.load_dataset(
                "parquet", data_files=paths, split="train", streaming=True, cache_dir=folder
            )
        else:
            rows = chain.from_iterable(json_rows(Path(path)) for path in paths)
        with atomic_path(file) as temporary, temporary.open("w", encoding="utf-8") as out:
            for row in rows:
                out.write(json.dumps(row, ensure_ascii=False, default=_printed) + "\n")


def _printed(value: object) -> str:
    """Return a date, time or decimal as text; ``ValueError`` for what is no text, such as bytes."""
    if isinstance(value, date | time | timedelta | Decimal):
        return str(value)
    raise ValueError(
        f"a field of its rows has the type {type(value).__name__}, which is no text; leave the task"
        " out of evaluation.downstream.tasks"
    )


def _word_lists(study: Study) -> list[Item]:
    """Return the word-similarity sets that are not there and whose public home is known."""
    if study.evaluation.word_similarity == "synthetic":
        return []
    items = []
    for spec in study.evaluation.word_similarity:
        target = Path(study.paths.word_similarity) / spec.file
        known = WORD_LISTS.get(spec.file)
        if target.is_file():
            if known is not None and sha256_file(target) != known.sha256:
                say(f"{target}: not the published file, by its SHA-256; it is left as it is")
        elif known is None:
            say(f"{target}: not there, and its public home is not known here; put it there")
        else:
            fetch = partial(_fetch_word_list, known, target)
            items.append(Item(f"word list {spec.name}", target, _WORD_LIST_BYTES, fetch))
    return items


def _fetch_word_list(known: WordList, target: Path) -> None:
    """Take a word list from the first of its homes that has it; ``ValueError`` with all of them if
    none has."""
    problems = []
    for home in known.homes:
        try:
            content = _content(home)
            if (found := sha256(content).hexdigest()) != known.sha256:
                raise ValueError(f"the SHA-256 is {found}")
        except (
            Exception
        ) as error:  # many types: of servers, of the client that asks them, of archives
            problems.append(f"{home.url} ({type(error).__name__}: {error})")
        else:
            write_bytes(target, content)
            return
    raise ValueError(
        f"paths.word_similarity: {target.name} with the SHA-256 {known.sha256}: put it at {target}"
        " yourself; tried " + ", ".join(problems)
    )


def _content(home: Home) -> bytes:
    """Return the file of a home, without its header; ``ValueError`` for one that is larger than any
    list."""
    content = read_url(home.url, _WORD_LIST_MINUTES, _ARCHIVE_BYTES)
    if home.member is not None and home.url.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive, archive.open(home.member) as stream:
            content = stream.read(_WORD_LIST_BYTES + 1)
    elif home.member is not None:
        with tarfile.open(fileobj=io.BytesIO(content)) as files:
            member = files.extractfile(home.member)
            assert member is not None
            content = member.read(_WORD_LIST_BYTES + 1)
    if len(content) > _WORD_LIST_BYTES:
        raise ValueError(f"more than {_WORD_LIST_BYTES:,} bytes")
    return content.partition(b"\n")[2] if home.has_header else content
