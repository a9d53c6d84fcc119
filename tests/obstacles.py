"""What may stand where a file or a folder belongs: a folder, a link to nothing or to itself, a pipe, a socket."""

import os
import socket
from pathlib import Path


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket is short
        server.bind(path.name)
        os.chdir(here)


def folder_with_a_file(path: Path) -> None:
    path.mkdir()
    (path / "file").touch()


KINDS = {
    "file": Path.touch,
    "folder": Path.mkdir,
    "folder with a file": folder_with_a_file,
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a folder": lambda path: path.symlink_to(".."),
    "pipe": os.mkfifo,
    "socket": socket_at,
}
FOR_FILES = [kind for kind in KINDS if kind != "file"]
FOR_FOLDERS = ["file", "link to nothing", "link to itself", "pipe", "socket"]
