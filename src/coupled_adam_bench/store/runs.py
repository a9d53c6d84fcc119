"""The records that a run leaves: ``run.json``, sealed, which knows its other files; light.

The name of a run's folder is the id of its cell, or of its trunk. A record that names another cell
is damage.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coupled_adam_bench.store.files import check_plain, read_sealed, sha256_file, write_sealed
from coupled_adam_bench.store.locks import FolderLock
from coupled_adam_bench.store.paths import RunFiles

KEEP_CHECKPOINTS = 2  # the newest, and the one before it in case the newest is damaged
CHECKPOINT_STATE = "state.json"
"""The file of a checkpoint with its identity, which names the cell."""

FINISHED = ("completed", "diverged")


def _checksum(path: Path) -> str | None:
    """Return the SHA-256 of a file, ``None`` if there is none."""
    return sha256_file(path) if path.is_file() else None


def _model_checksums(model: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in the folder of a model by its name; empty where there is
    none."""
    files = [path for path in sorted(model.rglob("*")) if path.is_file()]
    return {path.relative_to(model).as_posix(): sha256_file(path) for path in files}


def write_run(run_dir: Path, record: Mapping[str, Any]) -> None:
    """Write ``run.json``, the last file of a run: its record, sealed, with the SHA-256 of history
    and model.

    ``model_sha256`` is the SHA-256 of the weights, and ``model_files`` has the SHA-256 of each file
    next to them.
    """
    files = RunFiles(run_dir)
    model = _model_checksums(files.model) if record["status"] == "completed" else {}
    checksums = {
        "model_sha256": model.pop(files.weights.name, None),
        "model_files": model,
        "history_sha256": _checksum(files.history),
    }
    write_sealed(files.record, {**record, **checksums})


def _misplaced(path: Path, run_dir: Path, cell_id: object) -> str | None:
    """Return the sentence that says that a file is of another cell than its folder, ``None`` if it
    is of the same."""
    return (
        None
        if cell_id == run_dir.name
        else f"{path}: is of {cell_id}, in the folder of {run_dir.name}"
    )


def read_run(path: Path) -> dict[str, Any]:
    """Read the record of an ended run, or of a branch; ``ValueError`` if it is damaged, or that of
    another cell."""
    record = read_sealed(path)
    if problem := _misplaced(path, path.parent, record.get("cell")):
        raise ValueError(f"{problem}; start again")
    return record


def run_damage(run_dir: Path, model: bool = False) -> str | None:
    """Return what is wrong with the record of a run, a sentence that names the file; ``None`` if it
    is whole or absent.

    ``run.json`` is compared with its seal and the name of the folder, the history with its SHA-256
    there, and the files of the ``model`` if asked.
    """
    files = RunFiles(run_dir)
    if not files.record.exists():
        return None
    try:
        run = read_sealed(files.record)
        if problem := _misplaced(files.record, run_dir, run["cell"]):
            return problem
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
    """Return the content of ``run.json`` if the run has ended and its files are whole, else
    ``None``."""
    record = RunFiles(run_dir).record
    if not record.exists() or run_damage(run_dir, model) is not None:
        return None
    run = read_sealed(record)
    return run if run["status"] in FINISHED else None


def mark_damaged(run_dir: Path) -> str:
    """Rename ``run.json``, so that the next start of the workflow trains the cell; return what the
    user is to do."""
    files, lock = RunFiles(run_dir), FolderLock(run_dir)
    try:
        # Whoever holds the lock is training the cell already.
        if lock.acquire(0):
            files.record.replace(files.damaged_record)
    except FileNotFoundError:  # another process has found it too
        pass
    finally:
        lock.release()
    return "start again: the model is made anew from the last checkpoint"


def write_cell(run_dir: Path, cell: dict[str, Any]) -> None:
    """Write ``cell.json``, sealed."""
    write_sealed(RunFiles(run_dir).cell, cell)


def cell_damage(run_dir: Path) -> str | None:
    """Return what is wrong with ``cell.json``, which may be missing or another cell's, or
    ``None``."""
    path = RunFiles(run_dir).cell
    try:
        return _misplaced(path, run_dir, read_sealed(path).get("id"))
    except (ValueError, OSError) as error:
        return str(error)


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's history; a missing file has none, and a last row without its line
    end is left out.

    Raises ``ValueError`` with the line that is not a row.
    """
    if not path.exists():
        return []
    rows = []
    whole, _, _ = check_plain(path).read_bytes().rpartition(b"\n")
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            row = json.loads(line)
            rows.append({"step": row["step"], "loss": row["loss"], **row})
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}: line {number} is not one of a training history ({error!r}); start again:"
                " the cell writes it anew"
            ) from None
    return rows


def run_history(run_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's history; ``ValueError`` if it is not the one that the record of an
    ended run has."""
    files, found = RunFiles(run_dir), _checksum(RunFiles(run_dir).history)
    if files.record.exists() and read_run(files.record).get("history_sha256", found) != found:
        raise ValueError(
            f"{files.history}: not the one that {files.record.name} has; start again: it is made"
            " anew"
        )
    return read_history(files.history)
