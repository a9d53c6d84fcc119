"""Finds the files of a model: in a folder, or on the Hugging Face hub, of whose weights only asked
bytes are read."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from embedding_geometry.transport import bounded, check_cache
from embedding_geometry.user_files import check_no_pointer

_SMALL = (
    "config.json",
    "*.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "vocab.*",
    "merges.txt",
    "*.model",
)
"""The files of a model that say what it is, and those of its tokenizer."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".json")
"""The endings of files that somebody may give in place of a folder."""
_SMALL_BYTES = 2**28
"""The largest of these files on the hub; the largest vocabularies that are in use take an eighth of
this."""
_SAID_BYTES = 10**7
MATRIX_ENDING = ".npy"
"""The ending of a file with one matrix, as NumPy writes it."""
SAVED_FOLDER = (
    "give the folder that transformers' save_pretrained writes, with config.json and safetensors"
)
SAVED_MATRIX = (
    f"write the embedding matrix of the loaded model with numpy.save as float32, and give that"
    f" {MATRIX_ENDING} file"
)
"""Advice that holds for any model: what is asked for is one matrix."""
_MINUTES = 5.0
"""How long an answer of the hub may stall in all."""


@dataclass(frozen=True)
class LocalFile:
    """A file on this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int:
        """The number of its bytes."""
        return self.path.stat().st_size

    def read(self, start: int, length: int) -> bytes:
        """Return ``length`` bytes from ``start`` on, or fewer at the end of the file."""
        with self.path.open("rb") as stream:
            stream.seek(start)
            return stream.read(length)


class HubFile:
    """A file on the hub; the bytes that were read lie in a temporary file while it is used."""

    def __init__(self, path: str, size: int) -> None:
        self.path, self.size = path, size
        self._read: dict[tuple[int, int], int] = {}
        self._kept = tempfile.TemporaryFile()  # noqa: SIM115  closed with this object

    def __str__(self) -> str:
        return self.path

    def read(self, start: int, length: int) -> bytes:
        """Return ``length`` bytes from ``start`` on; ``ValueError`` if the hub gives other ones or
        none."""
        # What was read before is kept in a file, since a hub is asked once for the same bytes.
        if (start, length) in self._read:
            self._kept.seek(self._read[start, length])
            return self._kept.read(length)
        from huggingface_hub import HfFileSystem

        if length > _SAID_BYTES:
            said = f"{self.path}: reading {length / 1e6:.0f} MB of {self.size / 1e6:.0f} MB"
            print(said, file=sys.stderr, flush=True)
        with (
            _hub(self.path, length),
            HfFileSystem().open(self.path, "rb", cache_type="none") as stream,
        ):
            stream.seek(start)
            content: bytes = stream.read(length)
        if len(content) != length:
            raise ValueError(
                f"{self.path}: the hub sends {len(content):,} bytes where {length:,} are asked; try"
                " later"
            )
        self._read[start, length] = self._kept.seek(0, 2)
        self._kept.write(content)
        return content


File = LocalFile | HubFile


@dataclass(frozen=True)
class Place:
    """The place of a model: a folder, or a repository on the hub."""

    name: str
    """The name that the user gave it."""
    folder: Path
    """A folder with its small files at least."""
    repository: str | None
    """Its name and commit on the hub, as ``ORG/NAME@COMMIT``; None for a folder."""

    def local(self, file: str) -> Path | None:
        """Return the path of a file in the folder, None if there is none.

        ``ValueError`` for a name or a link that leads out of the folder: the file would be none of
        the model's.
        """
        name = PurePosixPath(file)
        path = self.folder / name
        if (
            name.is_absolute()
            or ".." in name.parts
            or not path.resolve().is_relative_to(self._home())
        ):
            raise ValueError(
                f"{self.name}: {file!r} leads out of the folder of the model; put the file into the"
                " folder"
            )
        return path if path.is_file() else None

    def _home(self) -> Path:
        """Return the folder, or for one in the hub's cache, whose files are links, the cache."""
        real = self.folder.resolve()
        return real.parents[2] if real.parent.name == "snapshots" else real

    def weights(self, file: str) -> File | None:
        """Return a file of weights, None if there is none; of one on the hub nothing is downloaded
        yet."""
        if (path := self.local(file)) is not None:
            return LocalFile(path)
        if self.repository is None:
            return None
        from huggingface_hub import HfFileSystem

        path_there = f"{self.repository}/{file}"
        with _hub(self.name):
            system = HfFileSystem()
            if not system.isfile(path_there):  # type: ignore[no-untyped-call]
                return None
            return HubFile(path_there, system.info(path_there)["size"])


def open_place(name: str) -> Place:
    """Return the place of a model: a folder, or ``ORG/NAME`` or ``ORG/NAME@REVISION`` on the hub.

    The small files of a model on the hub are downloaded into the hub's cache. ``ValueError`` if
    there is no such model.
    """
    folder = Path(name)
    if folder.is_dir():
        return Place(name, folder, None)
    if folder.is_file():
        check_no_pointer(folder)
        raise ValueError(
            f"{name}: a file {folder.suffix or 'without an ending'}, of which only {MATRIX_ENDING}"
            f" is measured; {SAVED_FOLDER}, or {SAVED_MATRIX}"
        )
    if folder.suffix in _WEIGHTS:
        raise ValueError(f"{name}: no such file; give the folder of a model, or a .npy file")
    repository, _, revision = name.partition("@")
    if folder.exists() or folder.is_absolute() or name.startswith(".") or repository.count("/") > 1:
        raise ValueError(
            f"{name}: no such folder; give the folder of a model, or a name of the Hugging Face hub"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    with _hub(name, _SMALL_BYTES):
        downloaded = Path(
            snapshot_download(repository, revision=revision or None, allow_patterns=list(_SMALL))
        )
    return Place(name, downloaded, f"{repository}@{downloaded.name}")


@contextmanager
def _hub(name: str, most_bytes: int = 0) -> Iterator[None]:
    """Bound what the hub may send meanwhile, and say in one sentence why the hub does not give
    something."""
    try:
        with bounded(_MINUTES, most_bytes):
            yield
    except (
        Exception
    ) as error:  # errors without a network, of HTTP, of answers, and of names that cannot be
        check_cache()
        raise ValueError(
            f"{name}: no folder of this name, and not available from the Hugging Face hub"
            f" ({type(error).__name__}: {error}); correct the name, connect this machine, or set"
            " HF_TOKEN if the model's terms must be accepted"
        ) from None
