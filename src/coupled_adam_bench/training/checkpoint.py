"""Checkpoints, which are written while training continues and ignored unless they are whole; and
the history.

A checkpoint is a folder ``step-00001000/``. It holds the tensors in the format of
torch.distributed.checkpoint, which any number of processes can read; ``state.json``;
``history.jsonl``, the history up to its step; and the sealed ``checksums.json``, which is written
last, before the folder gets its name.
"""

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import async_save

from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store.files import (
    read_json,
    read_sealed,
    remove,
    sha256_file,
    write_json,
    write_sealed,
    write_text,
)
from coupled_adam_bench.store.paths import HISTORY
from coupled_adam_bench.store.runs import CHECKPOINT_STATE, KEEP_CHECKPOINTS
from coupled_adam_bench.training.distributed import WorkerGroup

KEPT = "kept"  # an empty file that marks a checkpoint which is never deleted
CHECKSUMS = "checksums.json"

Described = dict[str, TensorStorageMetadata]


class CheckpointError(OSError):
    """A checkpoint could not be written or read; earlier checkpoints are untouched."""


def step_of(path: Path) -> int:
    """Return the step of a checkpoint, or -1 if the path is not one."""
    match = re.fullmatch(r"step-(\d+)", path.name)
    return int(match[1]) if match else -1


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, the newest first."""
    return sorted(
        (path for path in folder.glob("step-*") if step_of(path) >= 0), key=step_of, reverse=True
    )


def damage(path: Path) -> str | None:
    """Return why a checkpoint is not whole, or ``None`` if all its files match their checksums.

    Raises ``CheckpointError`` for a checkpoint that cannot be read, for lack of permission or
    because of the disk.
    """
    try:
        if not path.is_dir():
            return "not a folder"
        listed = read_sealed(path / CHECKSUMS)
        for name in (CHECKPOINT_STATE, HISTORY):
            if name not in listed:
                return f"{CHECKSUMS} does not list {name}"
        for name, sha256 in listed.items():
            if not (path / name).is_file():
                return f"{name} is missing"
            if sha256_file(path / name) != sha256:
                return f"the SHA-256 of {name} differs"
    except (ValueError, FileNotFoundError, IsADirectoryError) as error:
        return str(error)
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot read the checkpoint ({error}); mend that, or delete it to train from"
            " the one before it"
        ) from error
    return None


class Checkpoints:
    """The checkpoints of one run, shared by all processes of a group.

    A checkpoint is only resumed if its recorded ``identity`` is the same.
    """

    def __init__(self, folder: Path, group: WorkerGroup, identity: dict[str, str]) -> None:
        self.folder, self.group, self.identity = folder, group, identity
        self._writer = ThreadPoolExecutor(1)
        self._pending: Future[Any] | None = None

    def save(
        self,
        step: int,
        tensors: dict[str, Tensor],
        state: dict[str, Any],
        history: str,
        kept: bool = False,
    ) -> None:
        """Copy the tensors, which may be sharded, and write the checkpoint of ``step`` while
        training continues.

        ``state`` is a JSON value and ``history`` the text of the run's history; only the first
        process's are used. The newest checkpoints and the ``kept`` ones are not deleted. This waits
        for the checkpoint before: see :meth:`wait`.
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
            full_state = {"identity": self.identity, "step": step, **state}
            self._pending = self._writer.submit(
                self._finish, written, temporary, full_state, history, kept
            )
        else:
            self._pending = written

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk; raise ``CheckpointError`` if it could not be
        written."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except (OSError, RuntimeError, CheckpointException) as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """End the thread that writes once it has written what is pending; this does not wait for
        it."""
        self._writer.shutdown(wait=False)

    def _failed(self, error: BaseException) -> Exception:
        advice = "free disk space and start again: training resumes from the checkpoint before it"
        return _readable(error, self.group, f"{self.folder}: cannot write the checkpoint", advice)

    def _finish(
        self, written: Future[Any], temporary: Path, state: dict[str, Any], history: str, kept: bool
    ) -> None:
        try:
            written.result()
            write_json(temporary / CHECKPOINT_STATE, state)
            write_text(temporary / HISTORY, history)
            if kept:
                (temporary / KEPT).touch()
            files = sorted(path.name for path in temporary.iterdir())
            with ThreadPoolExecutor(
                self.group.size
            ) as pool:  # each process has written a file of its own
                sums = pool.map(sha256_file, [temporary / name for name in files])
                write_sealed(temporary / CHECKSUMS, dict(zip(files, sums, strict=True)))
            final = self.folder / temporary.name.removeprefix(".").removesuffix(".tmp")
            remove(final)  # an existing one of this step is damaged or of other data
            temporary.rename(final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        # Later ones were passed over: they are damaged or another cell's, and no reason to delete
        # one of this run.
        ours = [path for path in checkpoints(self.folder) if step_of(path) <= state["step"]]
        for old in [path for path in ours if not (path / KEPT).exists()][KEEP_CHECKPOINTS:]:
            # A half-deleted checkpoint must not keep its name.
            doomed = old.rename(old.with_name(f".{old.name}.tmp"))
            remove(doomed)

    def clean(self) -> None:
        """Remove checkpoints that a killed process left half written."""
        if self.group.is_first:
            for path in self.folder.glob(".step-*.tmp"):
                remove(path)

    def newest(self, last_step: int | None = None) -> Path | None:
        """Return the newest whole checkpoint of this identity up to ``last_step``, or ``None``.

        Checkpoints that are damaged or have another identity are skipped and named on stderr.
        """
        return self.group.run_on_first(lambda: self._newest(last_step))

    def _newest(self, last_step: int | None) -> Path | None:
        for path in checkpoints(self.folder):
            if last_step is not None and step_of(path) > last_step:
                continue
            if (reason := damage(path)) is not None:
                say(f"{path}: damaged ({reason}), falling back to the one before it")
                continue
            identity = read_json(path / CHECKPOINT_STATE)["identity"]
            if identity != self.identity:
                say(f"{path}: belongs to {identity}, not to {self.identity}; passed over")
                continue
            return path
        return None


def load(
    path: Path, group: WorkerGroup, allocate: Callable[[Described], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint into those that ``allocate`` makes from their descriptions,
    and return them.

    A tensor may be sharded differently from when it was written. Read only your own checkpoints,
    because the metadata of torch.distributed.checkpoint is a pickle. Raises ``CheckpointError`` in
    all processes if one of them cannot read.
    """
    reader = FileSystemReader(path)
    described = reader.read_metadata().state_dict_metadata
    tensors = allocate(
        {key: value for key, value in described.items() if isinstance(value, TensorStorageMetadata)}
    )
    _accept_single_process()
    try:
        load_tensors(
            tensors, storage_reader=reader, process_group=group.saves, no_dist=group.size == 1
        )
    except CheckpointException as error:
        advice = (
            "start again; if it comes back, delete this checkpoint: training resumes from the one"
            " before it"
        )
        raise _readable(error, group, f"{path}: cannot read the checkpoint", advice) from error
    return tensors


def _readable(error: BaseException, group: WorkerGroup, what: str, advice: str) -> Exception:
    """Return a readable error for one of torch.distributed.checkpoint, which may not be an
    Exception."""
    if group.lost_peer(error):
        return RuntimeError(str(error))
    reason = str(error).strip().splitlines()[-1]  # its message consists of whole tracebacks
    return CheckpointError(f"{what} ({reason}); {advice}")


def _accept_single_process() -> None:
    """Silence the warning that torch.distributed.checkpoint gives each time without a process
    group."""
    warnings.filterwarnings(
        "ignore", message="torch.distributed is disabled", module="torch.distributed.checkpoint"
    )


class History:
    """The lines of ``history.jsonl`` so far, one for each logged step, in memory and in the file,
    which it can mend."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: list[str] = []

    @property
    def text(self) -> str:
        """The content that the file should have."""
        return "".join(self._lines)

    def restore(self, lines: Sequence[str]) -> None:
        """Go back to these lines, in memory and on disk."""
        self._lines = list(lines)
        self.mend()

    def append(self, row: dict[str, Any]) -> None:
        """Append one row."""
        self._lines.append(json.dumps(row) + "\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(self._lines[-1])
            file.flush()
            os.fsync(file.fileno())

    def mend(self) -> None:
        """Write the whole file again, unless it is intact."""
        if not (self.path.is_file() and self.path.read_bytes() == self.text.encode()):
            write_text(self.path, self.text)


def split_lines(text: str) -> list[str]:
    """Return the lines of a history's text, each with its line end."""
    return text.splitlines(keepends=True)
