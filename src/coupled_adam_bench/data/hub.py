"""Datasets of the Hugging Face hub: which files they are at which commit, and their download by the
hub's library."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coupled_adam_bench.data.documents import kind_of
from coupled_adam_bench.data.patience import (
    BY_FETCH,
    HubAwayError,
    PlaceError,
    causes_of,
    patiently,
    status_of,
)
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store.files import digest, sha256_file
from coupled_adam_bench.study.catalogue.presets import Place
from coupled_adam_bench.study.plan.inputs import PACKINGS
from embedding_geometry.transport import CacheError

FORMATS = (".parquet", ".jsonl", ".json", ".ndjson", ".txt")
"""Endings of the files of a dataset that can be read, plain or packed."""
_OTHER_HUB = "set data.source.dataset to a copy, or HF_ENDPOINT to another server"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors that mean a full disk, an exceeded quota and a limit on the size of files."""


@contextmanager
def _said_of(place: Place) -> Iterator[None]:
    """Say in words what the hub's libraries found, and what to set; there are many types of their
    errors."""
    from huggingface_hub import errors

    try:
        yield
    except (PlaceError, HubAwayError, CacheError):
        raise
    except Exception as error:
        # A full disk is no fault of the dataset, and has an advice of its own further up.
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise
        where, status = name_of(place), status_of(error)
        kinds = {type(cause) for cause in causes_of(error)}
        if errors.OfflineModeIsEnabled in kinds:
            raise ValueError(
                f"{where} is not on this machine, and HF_HUB_OFFLINE forbids to ask the hub;"
                f" connect this machine,{BY_FETCH} or use the source 'files'"
            ) from error
        # Some errors carry only a status, so it decides where the type does not.
        if errors.GatedRepoError in kinds or status == 403:
            problem = f" is gated (HTTP {status}): its terms must be accepted on its page"
            advice = (
                "do that, and set HF_TOKEN to a token of your account, or set data.source.dataset"
                " to a copy"
            )
        elif errors.RevisionNotFoundError in kinds:
            problem = ": there is no such revision"
            advice = (
                "set data.source.revision to a commit or branch of the dataset, or leave it out for"
                " the newest"
            )
        elif errors.RepositoryNotFoundError in kinds or status in (401, 404):
            problem = f" does not exist, was renamed or removed, or is private (HTTP {status})"
            advice = (
                "set data.source.dataset to its new name or to a copy, data.source.preset to"
                " another corpus, or HF_TOKEN if it is yours"
            )
        else:
            problem = f" cannot be read ({type(error).__name__}: {error})"
            advice = "correct data.source, or use the source 'files'"
        raise PlaceError(f"{where}{problem}", advice) from error


@dataclass(frozen=True)
class HubFile:
    """A file of a dataset."""

    path: str
    """Path in the repository."""
    bytes: int
    sha256: str | None
    """None for a small file that the hub keeps in git itself."""


@dataclass(frozen=True)
class Listing:
    """The files of a dataset's split at one commit, in the order in which they are read."""

    place: Place
    dataset: str
    """Its name now, which differs from that of the place if it was renamed."""
    commit: str
    files: tuple[HubFile, ...]

    @property
    def key(self) -> str:
        """Hash of what the files contain, and of their order."""
        return digest([self.dataset, self.commit, [asdict(file) for file in self.files]])

    @property
    def n_bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)

    def facts(self) -> dict[str, Any]:
        """Return what ``meta.json`` records of the place that served."""
        named = {"dataset": self.dataset, "revision": self.place.revision, "commit": self.commit}
        place = {name: value for name, value in asdict(self.place).items() if name != "dataset"}
        return named | place | {"n_files": len(self.files), "bytes": self.n_bytes}


def listing_from_json(values: dict[str, Any]) -> Listing:
    """Return the listing that ``dataclasses.asdict`` made into a JSON value."""
    files = tuple(HubFile(**file) for file in values["files"])
    return Listing(Place(**values["place"]), values["dataset"], values["commit"], files)


def name_of(place: Place) -> str:
    """Return a place in words."""
    revision = f" at revision {place.revision!r}" if place.revision is not None else ""
    return f"dataset {place.dataset!r}{revision}"


def list_place(place: Place, minutes: float) -> Listing:
    """Return the files of a place; ``PlaceError`` for one that cannot serve, ``HubAwayError`` if
    the hub is away."""
    import datasets

    datasets.disable_progress_bars()
    with _said_of(place):
        return patiently(name_of(place), minutes, lambda: _list(place))


def _list(place: Place) -> Listing:
    from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.hf_api import RepoFile

    api = HfApi()
    info = api.dataset_info(place.dataset, revision=place.revision)
    if not isinstance(info.sha, str):
        raise PlaceError(f"{name_of(place)}: the answer of the hub names no commit", _OTHER_HUB)
    if info.id != place.dataset:
        say(f"{name_of(place)} is now {info.id!r}: set data.source.dataset to that")
    tree = {
        entry.path: entry
        for entry in api.list_repo_tree(
            info.id, recursive=True, revision=info.sha, repo_type="dataset"
        )
        if isinstance(entry, RepoFile)
    }
    script = f"{info.id.split('/')[-1]}.py"
    if script in tree:
        raise PlaceError(
            f"{name_of(place)} has a loading script, {script}, which the library `datasets` refuses"
            " since version 4",
            "set data.source.revision to 'refs/convert/parquet', or data.source.dataset to a copy"
            " in parquet",
        )
    # Anybody may list the files of a gated dataset, and the library `datasets` hides the status:
    # one file is asked for.
    if (path := next(iter(tree), None)) is not None:
        get_hf_file_metadata(hf_hub_url(info.id, path, repo_type="dataset", revision=info.sha))
    root = f"hf://datasets/{info.id}@{info.sha}/"
    files = []
    for path in _data_files(place, info.id, info.sha):
        if not path.startswith(root):
            # The library falls back to its cache when the connection breaks.
            raise ConnectionError(f"the library gave {path} in place of {root}")
        entry = tree[path.removeprefix(root)]
        _check_file(place, Path(entry.path))
        # The library passes on what the answer says, of any type.
        if not isinstance(entry.size, int) or entry.size < 0:
            raise PlaceError(
                f"{name_of(place)}: the hub says that {entry.path} has {entry.size!r} bytes, which"
                " no file has",
                _OTHER_HUB,
            )
        files.append(
            HubFile(entry.path, entry.size, entry.lfs.sha256 if entry.lfs is not None else None)
        )
    if not any(file.bytes for file in files):
        raise PlaceError(
            f"{name_of(place)}: all of its {len(files)} files are empty by what the hub says",
            _OTHER_HUB,
        )
    return Listing(place, info.id, info.sha, tuple(files))


def _data_files(place: Place, dataset: str, commit: str) -> list[str]:
    """Return the files that the library ``datasets`` reads for the configuration and split, in its
    order."""
    import datasets

    try:
        builder = datasets.load_dataset_builder(dataset, place.config_name, revision=commit)
    except ValueError as error:
        # A configuration that is not there has no error of its own, only a text of either case.
        if "onfig" in str(error):
            raise PlaceError(
                f"{name_of(place)}: {error}",
                f"set data.source.config_name, now {place.config_name!r}",
            ) from None
        raise
    except FileNotFoundError as error:
        raise PlaceError(
            f"{name_of(place)} has no files of text ({error})", "set data.source.dataset to another"
        ) from None
    found = builder.config.data_files or {}
    if place.split not in found:
        raise PlaceError(
            f"{name_of(place)} has no split {place.split!r}, only"
            f" {', '.join(map(str, found)) or 'none'}",
            "set data.source.split",
        )
    return [str(path) for path in found[place.split]]


def _check_file(place: Place, path: Path) -> None:
    """Raise ``PlaceError`` for a file that cannot be read, that says that it is a part only, or
    leads elsewhere."""
    if path.is_absolute() or ".." in path.parts:
        raise PlaceError(
            f"{name_of(place)}: {path} leads out of the folder of the data set",
            "set data.source.dataset to a copy",
        )
    if kind_of(path) not in FORMATS:
        raise PlaceError(
            f"{name_of(place)}: {path} is none of {', '.join(FORMATS)}, plain or as"
            f" {', '.join(PACKINGS)}",
            "set data.source.dataset or data.source.revision to a copy in parquet",
        )
    # The hub's own conversion stops at 5 GB and calls the split's folder so.
    if any(part.startswith("partial-") for part in path.parts):
        raise PlaceError(
            f"{name_of(place)} has only a part of the text ({path})",
            "set data.source.dataset or data.source.revision to a whole copy",
        )


def download(listing: Listing, file: HubFile, folder: Path, minutes: float) -> Path:
    """Return the path of a file of a dataset below ``folder``, after downloading it if it is not
    there whole.

    ``ValueError`` if its size or, where the hub has one, its SHA-256 is not that of the listing.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    target, what = folder / file.path, f"{file.path} of {name_of(listing.place)}"
    if target.is_file() and damage(target, file) is None:
        return target
    target.unlink(missing_ok=True)
    disable_progress_bars()  # they print a line for every chunk into a log
    with _said_of(listing.place):
        patiently(
            what,
            minutes,
            lambda: hf_hub_download(
                listing.dataset,
                file.path,
                repo_type="dataset",
                revision=listing.commit,
                local_dir=folder,
            ),
            most_bytes=file.bytes,
        )
    if problem := damage(target, file):
        target.unlink()
        raise ValueError(
            f"data.source: {what}: {problem}: the hub or a proxy on the way sends other bytes than"
            " it lists; try again later, or set data.source.dataset to a copy"
        )
    return target


def damage(path: Path, file: HubFile) -> str | None:
    """Return how a downloaded file differs from the hub's list of files, or None."""
    if (size := path.stat().st_size) != file.bytes:
        return f"{size:,} bytes, but the hub lists {file.bytes:,}"
    if file.sha256 is not None:
        sha256 = sha256_file(path)
        if sha256 != file.sha256:
            return f"its SHA-256 is {sha256}, but the hub lists {file.sha256}"
    return None
