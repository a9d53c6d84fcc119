"""Lists a folder that a user gives, and knows files that only stand for others; it imports nothing
heavy."""

import os
from pathlib import Path
from typing import NamedTuple

POINTER = b"version https://git-lfs.github.com/spec/v"
"""How a pointer of Git LFS begins
(git-lfs.com, "Git LFS Specification", "The Pointer")."""


class Listing(NamedTuple):
    """What lies in a folder."""

    files: list[Path]
    """Its files and those of its subfolders, sorted."""
    hidden: list[Path]
    """The hidden files and folders in it, sorted; hidden folders are not looked into."""


def list_folder(folder: Path) -> Listing:
    """Return the files that a user means by a folder, and what is hidden in it.

    A name that begins with a dot is hidden: editors, notebooks, Git and macOS put copies there that
    nobody means to read. Links are followed. ``OSError`` for a folder that cannot be read.
    """
    files: list[Path] = []
    hidden: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        hidden += [Path(place, name) for name in (*folders, *names) if is_hidden(name)]
        files += [Path(place, name) for name in names if not is_hidden(name)]
        folders[:] = [name for name in folders if not is_hidden(name)]
    return Listing(sorted(files), sorted(hidden))


def is_hidden(name: str) -> bool:
    """Tell whether a file or a folder is hidden, by its name without its folder."""
    return name.startswith(".")


def _raise(error: OSError) -> None:
    raise error


def check_no_pointer(path: Path) -> None:
    """Raise ``ValueError`` if a file is a pointer of Git LFS in the place of the file that it
    names; nothing is read from a pipe."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        check_beginning(file.read(len(POINTER)), str(path))


def check_beginning(beginning: bytes, name: str) -> None:
    """Raise ``ValueError`` if a file begins like a pointer of Git LFS."""
    if beginning.startswith(POINTER):
        raise ValueError(
            f"{name}: a pointer of Git LFS stands in the place of this file; type `git lfs pull`"
            " in the folder that was cloned"
        )
