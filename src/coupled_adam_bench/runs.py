"""The records that a run leaves: ``run.json``, sealed, which knows its other files, and ``attempt.json``; light."""

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coupled_adam_bench.files import read_sealed, sha256_file, write_sealed
from coupled_adam_bench.locks import FolderLock, is_held
from coupled_adam_bench.paths import RunFiles

KEEP_CHECKPOINTS = 2  # the newest, and the one before it in case the newest is damaged

FINISHED = ("completed", "diverged")


def _checksum(path: Path) -> str | None:
    """Return the SHA-256 of a file, ``None`` if there is none."""
    return sha256_file(path) if path.is_file() else None


def _model_checksums(model: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in the folder of a model by its name; empty where there is none."""
    files = [path for path in sorted(model.rglob("*")) if path.is_file()]
    return {path.relative_to(model).as_posix(): sha256_file(path) for path in files}


def write_run(run_dir: Path, record: Mapping[str, Any]) -> None:
    """Write ``run.json``, the last file of a run: its record, sealed, with the SHA-256 of history and model.

    ``model_sha256`` is that of the weights, ``model_files`` has those of the files beside them.
    """
    files = RunFiles(run_dir)
    model = _model_checksums(files.model) if record["status"] == "completed" else {}
    checksums = {
        "model_sha256": model.pop(files.weights.name, None),
        "model_files": model,
        "history_sha256": _checksum(files.history),
    }
    write_sealed(files.record, {**record, **checksums})


def run_damage(run_dir: Path, model: bool = False) -> str | None:
    """Return what is wrong with the record of a run, a sentence that names the file; ``None`` if it is whole or absent.

    ``run.json`` is compared with its seal, the history with its SHA-256 there, and the files of the ``model`` if asked.
    """
    files = RunFiles(run_dir)
    if not files.record.exists():
        return None
    try:
        run = read_sealed(files.record)
        checksums = {files.history: run["history_sha256"]}
        if model and run["status"] == "completed":
            checksums |= {files.model / name: value for name, value in run["model_files"].items()}
            checksums[files.weights] = run["model_sha256"]
    except KeyError as error:
        return f"{files.record}: has no {error}: of another version of this program"
    except (ValueError, OSError) as error:
        return str(error)
    for path, expected in checksums.items():
        if (checksum := _checksum(path)) != expected:
            state = f"SHA-256 {checksum}" if checksum else "missing"
            return f"{path}: {state}, but {files.record.name} says {expected}"
    return None


def finished_run(run_dir: Path, model: bool = False) -> dict[str, Any] | None:
    """Return the content of ``run.json`` if the run has ended and its files are whole, else ``None``."""
    record = RunFiles(run_dir).record
    if not record.exists() or run_damage(run_dir, model) is not None:
        return None
    run = read_sealed(record)
    return run if run["status"] in FINISHED else None


def mark_damaged(run_dir: Path) -> str:
    """Rename ``run.json``, so that the next start of the workflow trains the cell; return what the user is to do."""
    files, lock = RunFiles(run_dir), FolderLock(run_dir)
    try:
        # Whoever holds the lock is training the cell already.
        if lock.acquire(0):
            files.record.replace(files.damaged_record)
    except FileNotFoundError:  # another process has found it too
        pass
    except OSError as error:
        return f"delete {files.record} ({error}) and start again: the model is made anew from the last checkpoint"
    finally:
        lock.release()
    return "start again: the model is made anew from the last checkpoint"


def write_cell(run_dir: Path, cell: dict[str, Any]) -> None:
    """Write ``cell.json``, sealed."""
    write_sealed(RunFiles(run_dir).cell, cell)


def cell_is_whole(run_dir: Path) -> bool:
    """Tell whether ``cell.json`` is as it was written."""
    try:
        read_sealed(RunFiles(run_dir).cell)
    except (ValueError, OSError):
        return False
    return True


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's history; a missing file has none, and a last row without its line end is left out.

    Raises ``ValueError`` with the line that is not a row.
    """
    if not path.exists():
        return []
    rows = []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            row = json.loads(line)
            rows.append({"step": row["step"], "loss": row["loss"], **row})
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}: line {number} is not one of a training history ({error!r}); start again: the cell writes it "
                "anew"
            ) from None
    return rows


def _read_attempt(run_dir: Path) -> dict[str, Any]:
    """Return the record of the attempts at a run; one that is missing or damaged tells of none."""
    try:
        return read_sealed(RunFiles(run_dir).attempt)
    except ValueError:
        return {"killed": 0, "running": None}


def killed_attempts(run_dir: Path) -> int:
    """Return how many attempts at a run that has not ended were killed without a word, the last one included.

    One that is under way, whose process holds the lock of the folder, does not count.
    """
    record = _read_attempt(run_dir)
    count: int = record["killed"]
    return count + (record["running"] is not None and not is_held(run_dir))


def begin_attempt(run_dir: Path) -> tuple[str, bool]:
    """Note, under the lock of the folder, that an attempt begins.

    Return its name, for :func:`end_attempt`, and whether the attempt before was killed: it has noted no end.
    """
    record, name = _read_attempt(run_dir), secrets.token_hex(8)
    was_killed = record["running"] is not None
    write_sealed(RunFiles(run_dir).attempt, {"killed": record["killed"] + was_killed, "running": name})
    return name, was_killed


def end_attempt(run_dir: Path, name: str, finished: bool) -> None:
    """Note that an attempt has come to an end in order; the count of those before goes when the run is ``finished``."""
    record = _read_attempt(run_dir)
    if record["running"] != name:  # another has begun since
        return
    if finished or not record["killed"]:
        RunFiles(run_dir).attempt.unlink(missing_ok=True)
    else:
        write_sealed(RunFiles(run_dir).attempt, {"killed": record["killed"], "running": None})
