"""Datasets of the Hugging Face hub: which files they are at which commit, and their download."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from coupled_adam_bench.data.documents import kind_of
from coupled_adam_bench.data.transport import (
    DISK_FULL,
    FileAtMost,
    HubAwayError,
    Patience,
    PlaceError,
    causes_of,
    check_address,
    status_of,
)
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store.files import digest, sha256_file
from coupled_adam_bench.study.inputs import PACKINGS
from coupled_adam_bench.study.presets import Place

FORMATS = (".parquet", ".jsonl", ".json", ".ndjson", ".txt")
"""Endings of the files of a dataset that can be read, plain or packed."""


@dataclass(frozen=True)
class HubFile:
    """A file of a dataset."""

    path: str
    """Path in the repository, or on this machine for a dataset that is a local folder."""
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
    """Empty for a folder on this machine."""
    files: tuple[HubFile, ...]

    @property
    def key(self) -> str:
        """Hash of what the files contain, and of their order."""
        return digest([self.dataset, self.commit, [asdict(file) for file in self.files]])

    @property
    def n_bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def is_local(self) -> bool:
        """Whether the dataset is a folder on this machine."""
        return self.commit == ""

    def facts(self) -> dict[str, Any]:
        """Return what ``meta.json`` records of the place that served."""
        return {
            "dataset": self.dataset,
            "revision": self.place.revision,
            "commit": self.commit or None,
            "config_name": self.place.config_name,
            "split": self.place.split,
            "text_field": self.place.text_field,
            "license": self.place.license,
            "n_files": len(self.files),
            "bytes": self.n_bytes,
        }


def listing_from_json(values: dict[str, Any]) -> Listing:
    """Return the listing that ``dataclasses.asdict`` made into a JSON value."""
    files = tuple(HubFile(**file) for file in values["files"])
    return Listing(Place(**values["place"]), values["dataset"], values["commit"], files)


def list_place(place: Place, patience: Patience) -> Listing:
    """Return the files of a place; ``PlaceError`` for one that cannot serve, ``ValueError`` if the hub is away."""
    import datasets

    datasets.disable_progress_bars()
    where = name_of(place)
    try:
        if Path(place.dataset).is_dir():
            return _list_local(place)
        return patience.wait_out(where, lambda: _list_remote(place))
    except (PlaceError, HubAwayError):
        raise
    except Exception as error:  # many types: HTTP, unknown names, formats
        raise _said(place, error) from error


def name_of(place: Place) -> str:
    """Return a place in words."""
    revision = f" at revision {place.revision!r}" if place.revision is not None else ""
    return f"dataset {place.dataset!r}{revision}"


def _said(place: Place, error: Exception) -> ValueError:
    """Return the error that says in words what the hub's libraries found, and what to set."""
    from huggingface_hub import errors

    where, status = name_of(place), status_of(error)

    def is_one_of(kind: type[Exception]) -> bool:
        return any(isinstance(cause, kind) for cause in causes_of(error))

    if is_one_of(errors.OfflineModeIsEnabled):
        return ValueError(
            f"{where} is not on this machine, and HF_HUB_OFFLINE forbids to ask the hub; connect this machine, "
            "download it first (target `fetch`, with paths.hub_mirror), or use the source 'files'"
        )
    if is_one_of(errors.GatedRepoError) or status == 403:
        return PlaceError(
            f"{where} is gated (HTTP {status}): its terms must be accepted on its page",
            "do that, and set HF_TOKEN to a token of your account, or set data.source.dataset to a copy",
        )
    if is_one_of(errors.RevisionNotFoundError):
        return PlaceError(
            f"{where}: there is no such revision",
            "set data.source.revision to a commit or branch of the dataset, or leave it out for the newest",
        )
    if is_one_of(errors.RepositoryNotFoundError) or status in (401, 404):
        return PlaceError(
            f"{where} does not exist, was renamed or removed, or is private (HTTP {status})",
            "set data.source.dataset to its new name or to a copy, data.source.preset to another corpus, or HF_TOKEN "
            "if it is yours",
        )
    return PlaceError(
        f"{where} cannot be read ({type(error).__name__}: {error})", "correct data.source, or use the source 'files'"
    )


def _list_remote(place: Place) -> Listing:
    from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.hf_api import RepoFile

    api = HfApi()
    info = api.dataset_info(place.dataset, revision=place.revision)
    assert info.sha is not None
    if info.id != place.dataset:
        say(f"{name_of(place)} is now {info.id!r}: set data.source.dataset to that")
    tree = {
        entry.path: entry
        for entry in api.list_repo_tree(info.id, recursive=True, revision=info.sha, repo_type="dataset")
        if isinstance(entry, RepoFile)
    }
    script = f"{info.id.split('/')[-1]}.py"
    if script in tree:
        raise PlaceError(
            f"{name_of(place)} has a loading script, {script}, which the library `datasets` refuses since version 4",
            "set data.source.revision to 'refs/convert/parquet', or data.source.dataset to a copy in parquet",
        )
    # Anybody may list the files of a gated dataset, and the library `datasets` hides the status: one file is asked for.
    if (path := next(iter(tree), None)) is not None:
        get_hf_file_metadata(hf_hub_url(info.id, path, repo_type="dataset", revision=info.sha))
    root = f"hf://datasets/{info.id}@{info.sha}/"
    files = []
    for path in _data_files(place, info.id, info.sha):
        if not path.startswith(root):  # the library falls back to its cache when the connection breaks
            raise ConnectionError(f"the library gave {path} in place of {root}")
        entry = tree[path.removeprefix(root)]
        files.append(HubFile(entry.path, entry.size, entry.lfs.sha256 if entry.lfs is not None else None))
    return Listing(place, info.id, info.sha, _checked(place, files))


def _list_local(place: Place) -> Listing:
    paths = [Path(path) for path in _data_files(place, place.dataset, None)]
    return Listing(
        place, place.dataset, "", _checked(place, [HubFile(str(path), path.stat().st_size, None) for path in paths])
    )


def _data_files(place: Place, dataset: str, revision: str | None) -> list[str]:
    """Return the files that the library ``datasets`` reads for the configuration and split, in its order."""
    import datasets

    try:
        builder = datasets.load_dataset_builder(dataset, place.config_name, revision=revision)
    except ValueError as error:
        if "onfig" in str(error):
            raise PlaceError(
                f"{name_of(place)}: {error}", f"set data.source.config_name, now {place.config_name!r}"
            ) from None
        raise
    except datasets.exceptions.DatasetNotFoundError:
        raise
    except FileNotFoundError as error:
        raise PlaceError(
            f"{name_of(place)} has no files of text ({error})", "set data.source.dataset to another"
        ) from None
    found = builder.config.data_files or {}
    if place.split not in found:
        raise PlaceError(
            f"{name_of(place)} has no split {place.split!r}, only {', '.join(map(str, found)) or 'none'}",
            "set data.source.split",
        )
    return [str(path) for path in found[place.split]]


def _checked(place: Place, files: list[HubFile]) -> tuple[HubFile, ...]:
    """Return the files if all can be read and none says that it is a part only; else ``PlaceError``."""
    for file in files:
        path = Path(file.path)
        if kind_of(path) not in FORMATS:
            raise PlaceError(
                f"{name_of(place)}: {file.path} is none of {', '.join(FORMATS)}, plain or as {', '.join(PACKINGS)}",
                "set data.source.dataset or data.source.revision to a copy in parquet",
            )
        # The hub's own conversion stops at 5 GB and calls the split's folder so.
        if any(part.startswith("partial-") for part in path.parts):
            raise PlaceError(
                f"{name_of(place)} has only a part of the text ({file.path})",
                "set data.source.dataset or data.source.revision to a whole copy",
            )
    return tuple(files)


def download(listing: Listing, file: HubFile, folder: Path, patience: Patience) -> Path:
    """Return the path of a file of a dataset below ``folder``, after downloading it if it is not there whole.

    A download that was broken off goes on where it ended, also in a later process. The file is compared with the size
    and, where the hub has one, the SHA-256 of the listing; ``ValueError`` if it differs twice.
    """
    if listing.is_local:
        return Path(file.path)
    target, part = folder / file.path, folder / ".incomplete" / file.path
    what = f"{file.path} of {name_of(listing.place)}"
    for _ in range(2):
        if target.is_file() and (problem := damage(target, file)) is None:
            return target
        target.unlink(missing_ok=True)
        try:
            patience.wait_out(
                what,
                lambda: _download_rest(listing, file, part),
                lambda: part.stat().st_size if part.is_file() else 0,
            )
        except HubAwayError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in DISK_FULL:
                raise
            said = _said(listing.place, error)
            raise ValueError(f"data.source: {file.path}: {said}") from error
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)
        if (problem := damage(target, file)) is None:
            return target
        say(f"{what}: {problem}; downloading it again")
    target.unlink(missing_ok=True)
    raise ValueError(
        f"data.source: {what}: {problem}, twice: the hub or a proxy on the way sends other bytes than it lists; try "
        "again later, or set data.source.dataset to a copy"
    )


def _download_rest(listing: Listing, file: HubFile, part: Path) -> None:
    """Download what is not in ``part`` yet; ``hf_hub_download`` keeps nothing of a file when it is broken off."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # they print a line for every chunk into a log
    url = hf_hub_url(listing.dataset, file.path, repo_type="dataset", revision=listing.commit)
    location = get_hf_file_metadata(url).location
    headers = build_hf_headers()
    if urlsplit(location).netloc != urlsplit(url).netloc:  # the store of large files is given no token
        headers.pop("authorization", None)
    if part.is_file() and part.stat().st_size > file.bytes:
        part.unlink()
    part.parent.mkdir(parents=True, exist_ok=True)
    check_address(location, url)
    with FileAtMost(part, file.bytes) as out:
        http_get(location, out, resume_size=out.tell(), headers=headers, expected_size=file.bytes)


def damage(path: Path, file: HubFile) -> str | None:
    """Return how a downloaded file differs from the hub's list of files, or None."""
    if (size := path.stat().st_size) != file.bytes:
        return f"{size:,} bytes, but the hub lists {file.bytes:,}"
    if file.sha256 is not None and (sha256 := sha256_file(path)) != file.sha256:
        return f"its SHA-256 is {sha256}, but the hub lists {file.sha256}"
    return None
