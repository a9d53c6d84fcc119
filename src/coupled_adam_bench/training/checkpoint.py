"""Checkpoints that are whole or ignored, written while training goes on, and the lock on a cell's folder.

A checkpoint is a folder ``step-00001000/``: the tensors in the format of torch.distributed.checkpoint, a file for each
process, so that any number of processes can read them again; ``state.json``; and ``checksums.json``, written last,
before the folder gets its name.
"""

import fcntl
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import async_save

from coupled_adam_bench.files import read_json, sha256_file, write_json
from coupled_adam_bench.training.distributed import Group

KEEP = 2  # the newest and, should that one be damaged, the one before
KEPT = "kept"  # an empty file in a checkpoint that stays as well
STATE = "state.json"
CHECKSUMS = "checksums.json"

Described = dict[str, TensorStorageMetadata]


class CheckpointError(OSError):
    """A checkpoint could not be written, or read; those before it are untouched."""


def step_of(path: Path) -> int:
    """Return the step of a checkpoint, -1 for a path that is none."""
    match = re.fullmatch(r"step-(\d+)", path.name)
    return int(match[1]) if match else -1


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, the newest first."""
    return sorted((path for path in folder.glob("step-*") if step_of(path) >= 0), key=step_of, reverse=True)


def is_whole(path: Path) -> bool:
    """Tell whether all files of a checkpoint are there with their checksums."""
    try:
        checksums = read_json(path / CHECKSUMS)
        return all((path / name).is_file() and sha256_file(path / name) == sha for name, sha in checksums.items())
    except ValueError:
        return False


class Checkpoints:
    """The checkpoints of one run, the same for all processes of a group.

    ``identity`` is what a checkpoint must say of itself to be resumed.
    """

    def __init__(self, folder: Path, group: Group, identity: dict[str, str]) -> None:
        self.folder, self.group, self.identity = folder, group, identity
        self._writer = ThreadPoolExecutor(1)
        self._pending: Future[Any] | None = None

    def save(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any], kept: bool = False) -> None:
        """Take a copy of the tensors (sharded ones too) and write the checkpoint of ``step`` beside the training.

        ``state`` is a JSON value. The newest stay, and those that are ``kept``. The one before is waited for: see
        :meth:`wait`.
        """
        self.wait()
        _accept_single_process()
        temporary = self.folder / f".step-{step:08d}.tmp"
        try:
            written = async_save(
                tensors,
                storage_writer=FileSystemWriter(temporary, overwrite=True),
                process_group=self.group.saves,
                no_dist=self.group.size == 1,
            )
        except OSError as error:
            raise self._failed(error) from error
        assert isinstance(written, Future)
        if self.group.is_first:
            whole = {"identity": self.identity, "step": step, **state}
            self._pending = self._writer.submit(self._finish, written, temporary, whole, kept)
        else:
            self._pending = written

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk; ``CheckpointError`` if it could not be written."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except (OSError, RuntimeError, CheckpointException) as error:
            raise self._failed(error) from error

    def _failed(self, error: BaseException) -> Exception:
        advice = "free disk space and start again: training resumes from the checkpoint before it"
        return _readable(error, self.group, f"{self.folder}: cannot write the checkpoint", advice)

    def _finish(self, written: Future[Any], temporary: Path, state: dict[str, Any], kept: bool) -> None:
        try:
            written.result()
            write_json(temporary / STATE, state)
            if kept:
                (temporary / KEPT).touch()
            files = sorted(path.name for path in temporary.iterdir())
            write_json(temporary / CHECKSUMS, {name: sha256_file(temporary / name) for name in files})
            final = self.folder / temporary.name.removeprefix(".").removesuffix(".tmp")
            shutil.rmtree(final, ignore_errors=True)  # of the same step, but damaged or of other data
            temporary.rename(final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        for old in [path for path in checkpoints(self.folder) if not (path / KEPT).exists()][KEEP:]:
            doomed = old.rename(old.with_name(f".{old.name}.tmp"))  # never half a checkpoint under its name
            shutil.rmtree(doomed, ignore_errors=True)

    def clean(self) -> None:
        """Remove what a killed process left half written."""
        if self.group.is_first:
            for path in self.folder.glob(".step-*.tmp"):
                shutil.rmtree(path, ignore_errors=True)

    def newest(self, last_step: int | None = None) -> Path | None:
        """Return the newest whole checkpoint of this identity, not after ``last_step``, or ``None``.

        A damaged one is named on stderr and passed over, as is one of other data.
        """
        return self.group.from_first(lambda: self._newest(last_step))

    def _newest(self, last_step: int | None) -> Path | None:
        for path in checkpoints(self.folder):
            if last_step is not None and step_of(path) > last_step:
                continue
            if not is_whole(path):
                print(f"{path}: damaged (its SHA-256 differs), falling back to the one before it", file=sys.stderr)
                continue
            found = read_json(path / STATE)["identity"]
            if found != self.identity:
                print(f"{path}: belongs to {found}, not to {self.identity}; passed over", file=sys.stderr)
                continue
            return path
        return None


def load(path: Path, group: Group, allocate: Callable[[Described], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint into those that ``allocate`` makes from their descriptions, and return them.

    A tensor may be sharded otherwise than it was when written. Read only checkpoints of your own: their description is
    a pickle, as torch.distributed.checkpoint writes it. Raises ``CheckpointError`` in all processes if one cannot read.
    """
    reader = FileSystemReader(path)
    described = reader.read_metadata().state_dict_metadata
    tensors = allocate({key: value for key, value in described.items() if isinstance(value, TensorStorageMetadata)})
    _accept_single_process()
    try:
        load_tensors(tensors, storage_reader=reader, process_group=group.saves, no_dist=group.size == 1)
    except CheckpointException as error:
        advice = "start again; if it comes back, delete this checkpoint: training resumes from the one before it"
        raise _readable(error, group, f"{path}: cannot read the checkpoint", advice) from error
    return tensors


def _readable(error: BaseException, group: Group, what: str, advice: str) -> Exception:
    """Return an error for people in place of one of torch.distributed.checkpoint, which may not be an Exception."""
    if group.lost(error):
        return RuntimeError(str(error))
    reason = str(error).strip().splitlines()[-1]  # of the tracebacks that it sends
    return CheckpointError(f"{what} ({reason}); {advice}")


def _accept_single_process() -> None:
    """Let torch.distributed.checkpoint work without a group, of which it warns each time."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled", module="torch.distributed.checkpoint")


@contextmanager
def cell_lock(run_dir: Path) -> Iterator[None]:
    """Hold the lock of a run folder; ``ValueError`` if another process trains this cell.

    The kernel drops the lock when its process ends, however it ends.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / ".lock"
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ValueError(
                f"{run_dir}: is being trained by another process ({file.read().strip()}); wait for it"
            ) from None
        file.truncate(0)
        file.write(f"pid {os.getpid()} on {os.uname().nodename}\n")
        file.flush()
        yield
