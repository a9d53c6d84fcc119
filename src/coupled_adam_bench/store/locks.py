"""The lock of a folder that only one process may write to; others wait and print which process
holds it."""

import fcntl
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from coupled_adam_bench.machine.progress import LINE_SECONDS, say

LOCK = ".lock"
_POLL_SECONDS = 0.2


class FolderLock:
    """The lock of a folder, a file with this ``name``; a missing folder is created.

    The kernel drops the lock when its process ends in any way, so the file by itself does not mean
    that it is held. ``waiting`` begins the line that names the holder while this process waits.
    """

    def __init__(self, folder: Path, name: str = LOCK, waiting: str | None = None) -> None:
        self._path = folder / name
        self._waiting = waiting or f"{folder}: waits for the process that works in this folder"
        self._file: IO[str] | None = None
        self._last_line = -math.inf
        self.left_by = ""
        """The process that held the lock before this one, as ``pid 1 on host``; empty if there was
        none."""

    def acquire(self, seconds: float = math.inf) -> bool:
        """Wait up to ``seconds`` for the lock and tell whether this process holds it now.

        While it waits, a line on stderr names the holder, at once and then once a minute. Another
        call resumes the wait.
        """
        deadline = time.monotonic() + seconds
        while not self._try():
            self._say_who()
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def release(self) -> None:
        """Release the lock, if this process holds it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _try(self) -> bool:
        # A process that has written nothing removes it again.
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("a+", encoding="utf-8", errors="replace")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The file may have been deleted or replaced since it was opened.
            is_ours = os.path.samestat(os.fstat(file.fileno()), self._path.stat())
        except (BlockingIOError, FileNotFoundError):
            is_ours = False
        except OSError as error:
            file.close()
            reason = (
                f"{self._path}: cannot be locked ({error.strerror}); put the results on a file"
                " system with locks"
            )
            raise OSError(error.errno, reason) from None
        if not is_ours:
            file.close()
            return False
        file.seek(0)
        self.left_by = file.read().strip()
        file.truncate(0)
        file.write(f"pid {os.getpid()} on {os.uname().nodename}\n")
        file.flush()
        self._file = file
        return True

    def _say_who(self) -> None:
        if time.monotonic() - self._last_line < LINE_SECONDS:
            return
        self._last_line = time.monotonic()
        try:
            holder = self._path.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            holder = ""
        say(f"{self._waiting} ({holder or 'its id is not known'})")


@contextmanager
def folder_lock(folder: Path, name: str = LOCK, waiting: str | None = None) -> Iterator[None]:
    """Hold the lock of a folder, after waiting for any other process that holds it; see
    :class:`FolderLock`."""
    lock = FolderLock(folder, name, waiting)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()
