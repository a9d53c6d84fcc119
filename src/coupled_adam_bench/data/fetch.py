"""``fetch``: downloads what a study needs into the folders of ``paths``, for jobs on machines without a network."""

import io
import json
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from coupled_adam_bench.data.hub import Listing, download, list_place
from coupled_adam_bench.data.sources import corpus_folder, fetch_corpus, open_corpus
from coupled_adam_bench.data.tokenizers import GPT2_REPOSITORY, GPT2_REVISION, mirrored_gpt2, read_gpt2
from coupled_adam_bench.data.transport import Patience, PlaceError, read_at_most, read_url
from coupled_adam_bench.evaluation.task_files import HubData, find_tasks, hub_data
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store.files import atomic_path, sha256_file
from coupled_adam_bench.study.config import HubSource, Study
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.presets import TASK_REVISIONS, WORD_LISTS, Home, Place, WordList

_TOKENIZER_BYTES = 4 * 10**6
_WORD_LIST_BYTES = 10**6
_MOST_WORD_LIST_BYTES = 10**8  # of an archive, and of the list in it


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

    ``dry_run`` only says it. Raises ``ValueError`` for a study without ``paths.hub_mirror``, for what the hub does not
    have, and if the disk has too little space.
    """
    items: dict[Path, Item] = {}
    missing: list[str] = []
    for study in plan.studies.values():
        for item in _items(study, bytes_per_token, missing):
            items.setdefault(item.target, item)
    if not items and not missing:
        print("nothing to fetch: the study needs nothing from outside, or all of it is there")
        return
    _check_space(list(items.values()))
    if dry_run:
        return
    for item in items.values():
        say(f"fetch {item.name}")
        with _tried(missing):
            item.fetch()
    if missing:
        listed = "\n".join(f"  {line}" for line in dict.fromkeys(missing))
        raise ValueError(f"{len(dict.fromkeys(missing))} things could not be had; all else is there\n{listed}")
    print("fetched; jobs find it under paths.hub_mirror and paths.word_similarity, and need no network")


@contextmanager
def _tried(missing: list[str]) -> Iterator[None]:
    """Note in ``missing`` why something cannot be had, and go on."""
    try:
        yield
    except ValueError as error:
        say(str(error))
        missing.append(str(error))


def _items(study: Study, bytes_per_token: float, missing: list[str]) -> list[Item]:
    """Return what a study needs and what is not there yet; what cannot be had is noted in ``missing``."""
    patience = Patience(study.execution.hub_minutes, "or use one that is connected")
    source, downstream = study.data.source, study.evaluation.downstream
    items = list(_word_lists(study))
    needs_hub = isinstance(source, HubSource) or downstream.tasks != "synthetic"
    if study.data.tokenizer == "gpt2" and study.paths.tokenizer is None:
        needs_hub = True
    if not needs_hub:
        return items
    if study.paths.hub_mirror is None:
        raise ValueError(
            f"paths.hub_mirror: not set in study {study.name!r}; set it to the folder that `fetch` fills and that jobs "
            "read, for example with --config 'paths={hub_mirror: data/hub}'"
        )
    mirror = study.paths.hub_mirror
    if study.data.tokenizer == "gpt2" and study.paths.tokenizer is None and not mirrored_gpt2(mirror).is_file():
        items.append(Item("GPT-2's tokenizer", mirrored_gpt2(mirror), _TOKENIZER_BYTES, _tokenizer(mirror, patience)))
    if downstream.tasks != "synthetic":
        items += _task_data(study, Path(mirror), patience, missing)
    if isinstance(source, HubSource):
        with _tried(missing):
            items.append(_corpus(study, source, mirror, bytes_per_token, patience))
    return items


def _corpus(study: Study, source: HubSource, mirror: str, bytes_per_token: float, patience: Patience) -> Item:
    folder = corpus_folder(mirror, source)
    listing = open_corpus(folder, source, patience)
    needed = None if study.data.max_tokens is None else study.data.max_tokens * bytes_per_token
    return Item(
        f"{listing.dataset} ({listing.place.license}), commit {listing.commit}",
        folder,
        listing.n_bytes if needed is None else min(listing.n_bytes, int(needed)),
        lambda: fetch_corpus(folder, listing, needed, patience),
    )


def _check_space(items: list[Item]) -> None:
    """Print what is to be fetched; ``ValueError`` if a disk has too little space for it."""
    by_disk: dict[int, tuple[Path, int]] = {}
    for item in items:
        there = next(folder for folder in (item.target, *item.target.absolute().parents) if folder.exists())
        missing = max(0, item.bytes - _size(item.target))
        print(f"{item.name}: at most {missing / 1e9:.3f} GB to fetch into {item.target}")
        _, so_far = by_disk.get(there.stat().st_dev, (there, 0))
        by_disk[there.stat().st_dev] = (there, so_far + missing)
    for folder, n_bytes in by_disk.values():
        free = shutil.disk_usage(folder).free
        print(f"{n_bytes / 1e9:.3f} GB at most, and {free / 1e9:.3f} GB are free at {folder}", flush=True)
        if n_bytes > free:
            raise ValueError(
                f"paths.hub_mirror: {n_bytes / 1e9:.3f} GB to fetch, but {free / 1e9:.3f} GB are free at {folder}; "
                "free some, set it to a folder on another disk, or lower data.max_tokens"
            )


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; 0 for what is not there."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _tokenizer(mirror: str, patience: Patience) -> Callable[[], None]:
    def fetch() -> None:
        from huggingface_hub import hf_hub_download

        target = mirrored_gpt2(mirror)
        patience.wait_out(
            f"tokenizer of {GPT2_REPOSITORY}",
            lambda: hf_hub_download(GPT2_REPOSITORY, target.name, revision=GPT2_REVISION, local_dir=target.parent),
        )
        try:
            read_gpt2(target)
        except ValueError:
            target.unlink()
            raise

    return fetch


def _task_data(study: Study, mirror: Path, patience: Patience, missing: list[str]) -> list[Item]:
    """Return the data of the downstream tasks that are not in the mirror."""
    downstream, items = study.evaluation.downstream, []
    for task in find_tasks(downstream.tasks, study.paths.tasks, downstream.task_versions):
        data = hub_data(task, downstream.num_fewshot)
        for split in () if data is None else data.needed:
            assert data is not None
            file = data.file(mirror, split)
            if file.is_file():
                continue
            name = f"task {task.name}, {data.dataset}, {split}"
            with _tried(missing):
                listing = _list_task_data(task.name, data, split, mirror, patience)
                # Lines of JSON are larger than parquet.
                items.append(Item(name, file, 5 * listing.n_bytes, partial(_write_task_data, listing, file, patience)))
    return items


def _list_task_data(name: str, data: HubData, split: str, mirror: Path, patience: Patience) -> Listing:
    """Return the files of a split of a task's data; ``ValueError`` that says why they cannot be read."""
    place = Place(data.dataset, TASK_REVISIONS.get(data.dataset), data.config_name, split)
    try:
        return list_place(place, patience)
    except PlaceError as error:
        raise ValueError(
            f"evaluation.downstream.tasks: {name}: {error.problem}; put its rows as lines of JSON at "
            f"{data.file(mirror, split)}, or a task file that reads another data set into paths.tasks"
        ) from error


def _write_task_data(listing: Listing, file: Path, patience: Patience) -> None:
    """Write the rows of a split as lines of JSON, whole or not at all."""
    with (
        tempfile.TemporaryDirectory(prefix="coupled-adam-bench-") as folder,
        atomic_path(file) as temporary,
        temporary.open("w", encoding="utf-8") as out,
    ):
        for part in listing.files:
            for row in _rows(download(listing, part, Path(folder), patience)):
                out.write(json.dumps(row, ensure_ascii=False) + "\n")


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, as the library ``datasets`` gives them."""
    import datasets

    reader = "parquet" if path.suffix == ".parquet" else "json"
    with tempfile.TemporaryDirectory(prefix="coupled-adam-bench-") as cache:
        rows = datasets.load_dataset(reader, data_files=str(path), split="train", streaming=True, cache_dir=cache)
        yield from rows


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
            fetch = partial(fetch_word_list, known, target)
            items.append(Item(f"word list {spec.name}", target, _WORD_LIST_BYTES, fetch))
    return items


def fetch_word_list(known: WordList, target: Path) -> None:
    """Take a word list from the first of its homes that has it; ``ValueError`` with all of them if none has."""
    problems = []
    for home in known.homes:
        try:
            content = _content(home)
            if (found := sha256(content).hexdigest()) != known.sha256:
                raise ValueError(f"the SHA-256 is {found}")
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, tarfile.TarError) as error:
            problems.append(f"{home.url} ({type(error).__name__}: {error})")
            continue
        with atomic_path(target) as temporary:
            temporary.write_bytes(content)
        return
    raise ValueError(
        f"paths.word_similarity: {target.name} with the SHA-256 {known.sha256}: put it at {target} yourself; tried "
        + ", ".join(problems)
    )


def _content(home: Home) -> bytes:
    """Return the file of a home, without its header."""
    content = read_url(home.url, _MOST_WORD_LIST_BYTES)
    if home.member is not None and home.url.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as unzipped, unzipped.open(home.member) as file:
            content = read_at_most(file, _MOST_WORD_LIST_BYTES, home.member)
    elif home.member is not None:
        with tarfile.open(fileobj=io.BytesIO(content)) as files:
            member = files.extractfile(home.member)
            assert member is not None
            content = read_at_most(member, _MOST_WORD_LIST_BYTES, home.member)
    return content.partition(b"\n")[2] if home.has_header else content
