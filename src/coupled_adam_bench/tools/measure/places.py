"""Where a model is: a folder, or a name on the Hugging Face hub, of which only the needed files are downloaded."""

from collections.abc import Callable
from pathlib import Path

_SMALL = ("config.json", "*.index.json", "tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "*.model")
"""The files of a model that say what it is, and those of its tokenizer."""

FileOf = Callable[[str], Path | None]
"""A function that returns the path of a file of a model by its name, None if there is none."""


def open_place(name: str) -> tuple[Path, FileOf]:
    """Return the folder of a model with its small files, and a function that gives the path of any of its files.

    ``ValueError`` if there is neither such a folder nor such a model on the hub.
    """
    folder = Path(name)
    if folder.is_dir():
        _check_links(folder)
        return folder, lambda file: folder / file if (folder / file).is_file() else None
    if folder.exists() or folder.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise ValueError(f"{name}: no such folder; give the folder of a model, or a name of the Hugging Face hub")
    downloaded = _download(name, _SMALL)

    def file_of(file: str) -> Path | None:
        path = downloaded / file
        if not path.is_file():
            _download(name, (file,), revision=downloaded.name)  # the commit that the small files are of
        return path if path.is_file() else None

    return downloaded, file_of


def _check_links(folder: Path) -> None:
    """Raise ``ValueError`` for a link that leads out of the folder of a model, but for those of the hub's own cache."""
    real = folder.resolve()
    homes = [real, real.parent.parent / "blobs"] if real.parent.name == "snapshots" else [real]
    for path in sorted(folder.iterdir()):
        if path.is_symlink() and not any(path.resolve().is_relative_to(home) for home in homes):
            raise ValueError(f"{path}: leads out of the folder of the model; put a copy of the file in its place")


def _download(name: str, patterns: tuple[str, ...], revision: str | None = None) -> Path:
    """Download the files of a model that match into the hub's cache; return the folder there."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns)))
    except (OSError, ValueError) as error:  # errors without a network, of HTTP, and of names that cannot be
        raise ValueError(
            f"{name}: no folder of this name, and not to be had from the Hugging Face hub ({error}); correct the name, "
            "connect this machine, or set HF_TOKEN for a model whose terms must be accepted"
        ) from None
