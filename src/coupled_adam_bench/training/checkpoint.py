"""Checkpoints that are whole or ignored, and the lock that keeps two processes out of one cell."""

import fcntl
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from coupled_adam_bench.files import atomic_path, sha256_file, write_text

KEEP = 2  # the newest and, should that one be damaged, the one before


class CheckpointError(OSError):
    """A checkpoint could not be written; those before it are untouched."""


def _step(path: Path) -> int:
    match = re.fullmatch(r"step-(\d+)\.pt", path.name)
    return int(match[1]) if match else -1


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoint files of a folder, the newest first."""
    return sorted((path for path in folder.glob("step-*.pt") if _step(path) >= 0), key=_step, reverse=True)


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write the state of ``step`` and its SHA-256 atomically, then delete all but the newest two.

    Raises ``CheckpointError`` when the disk refuses, with the earlier checkpoints in place.
    """
    path = folder / f"step-{step:08d}.pt"
    try:
        with atomic_path(path) as temporary:
            torch.save(state, temporary)
            # The checksum comes first: without it a checkpoint counts as damaged, with it and no file as absent.
            write_text(path.with_suffix(".sha256"), sha256_file(temporary) + "\n")
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        raise CheckpointError(
            f"{path}: cannot write the checkpoint ({error}); free disk space and start again: "
            f"training resumes from the checkpoint before it"
        ) from error
    for old in checkpoints(folder)[KEEP:]:
        old.unlink()
        old.with_suffix(".sha256").unlink(missing_ok=True)


def load_checkpoint(folder: Path, device: torch.device, identity: dict[str, str]) -> dict[str, Any] | None:
    """Return the newest whole checkpoint of the cell, or ``None`` without one.

    A damaged one is named on stderr and passed over. ``identity`` are entries that the state must hold; a checkpoint of
    other data is passed over likewise, never resumed.
    """
    for path in checkpoints(folder):
        checksum = path.with_suffix(".sha256")
        if not checksum.is_file() or checksum.read_text(encoding="utf-8").strip() != sha256_file(path):
            print(f"{path}: damaged (its SHA-256 differs), falling back to the checkpoint before it", file=sys.stderr)
            continue
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        if state["identity"] != identity:
            print(f"{path}: belongs to {state['identity']}, not to {identity}; passed over", file=sys.stderr)
            continue
        return state
    return None


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
