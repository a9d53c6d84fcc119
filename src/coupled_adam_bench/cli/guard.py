"""What a start of the workflow finds: locks of a killed run, files of the future, files that are not what was written.

A study's files form a chain: token bins, trained cells, evaluations. Each link has checksums. Before jobs are planned,
every link of the study is compared with them; what differs is set aside, so that the workflow makes it anew. The run of
the workflow that does this has the lock of the study's folder: there is no other.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coupled_adam_bench.data.check import META, data_is_damaged, mark_damaged
from coupled_adam_bench.store.files import move_aside, read_json, read_sealed
from coupled_adam_bench.store.locks import LOCK
from coupled_adam_bench.store.paths import RESULTS, RunFiles
from coupled_adam_bench.store.runs import cell_damage, finished_run, run_damage
from coupled_adam_bench.store.stored import Measurement
from coupled_adam_bench.study.tuning import Tuning, choice_file, read_choice


def check_readable(folders: Iterable[Path]) -> None:
    """Raise ``ValueError`` that names the first of ``folders``, parents first, that is away or may not be read."""
    for folder in folders:
        if folder.is_symlink() and not folder.exists():
            raise ValueError(f"{folder}: this is a link to a folder that is not there; mount that, or remove the link")
        if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
            raise ValueError(
                f"{folder}: you may not read this folder. Where a group works in one results folder, its owner types "
                f"`chmod -R g+rwX {RESULTS}`, and each user types `umask 002` before a start"
            )


def remove_stale_locks(snakemake_dir: Path, study_dir: Path, left_by: str) -> str | None:
    """Remove the locks that a killed run of Snakemake left on a study's files, and return a sentence that says so.

    Called by the process that holds the lock of the study's folder, so no other run of the study is alive.
    ``left_by`` is what the run before wrote into it. Where that was on another machine, the file system may have locks
    that end at the machine: Snakemake's stay, and the sentence says what to type.
    """
    stale = [file for file in (snakemake_dir / "locks").glob("*.lock") if f"{study_dir}/" in _text(file)]
    if not stale:
        return None
    host = left_by.rpartition(" on ")[2]
    if host not in ("", os.uname().nodename):
        return (
            f"{snakemake_dir / 'locks'}: locks of a run on {host}; if that run is no longer alive, remove them with "
            "`snakemake --unlock` and start again"
        )
    for file in stale:
        file.unlink(missing_ok=True)
    return f"{snakemake_dir / 'locks'}: an earlier run was killed and left its locks; they are removed"


def bring_to_present(study_dir: Path) -> str | None:
    """Give the files of a study whose time lies in the future the present one, and return a sentence that says so.

    Snakemake fails a job with an input that is newer than its output, as after a clock that was ahead. The present is
    the file system's own: the lock of the folder, which the caller holds, has just been written.
    """
    now = (study_dir / LOCK).stat().st_mtime_ns
    n_early = 0
    for path in study_dir.rglob("*"):
        with suppress(OSError):  # it is gone, or belongs to somebody who lets nobody write it
            if path.is_file() and path.stat().st_mtime_ns > now:
                os.utime(path)
                n_early += 1
    return f"{study_dir}: {n_early} files had a time in the future; they have the present one now" if n_early else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:  # its run has ended
        return ""


_MADE_ANEW = "it is made anew when a job needs it"


@dataclass(frozen=True)
class Damage:
    """A file that is not what was written, and why that is known."""

    path: Path
    reason: str


def remove_outdated(study_dir: Path, made_for: str) -> None:
    """Remove the manifest of what was made from another plan or measured otherwise, so that all of it is made anew.

    Snakemake notes such things in the working folder, and does not know what was run from another one.
    """
    manifest = study_dir / "manifest.json"
    try:
        is_new = read_json(manifest)["made_for"] == made_for
    except (ValueError, TypeError, KeyError):  # it is missing, damaged, or of an older version
        is_new = False
    if not is_new:
        manifest.unlink(missing_ok=True)


def edited_plan(path: Path) -> Iterator[Damage]:
    """Find out whether the plan of the last start is there and is not what was written."""
    if path.exists():
        try:
            read_sealed(path)
        except ValueError as error:
            yield Damage(path, str(error))


def unprepared(markers: Mapping[Path, Path]) -> Iterator[Damage]:
    """Find the markers of prepared data that are there although the data are not."""
    for marker, folder in markers.items():
        if marker.exists() and not (folder / META).is_file():
            yield Damage(marker, f"{folder / META}: no such file")


def untrained(markers: Mapping[Path, list[str]], runs: Path) -> Iterator[Damage]:
    """Find the markers of training jobs that are there although a run of theirs is missing or damaged.

    Training such a cell again goes on from its last checkpoint, and ends with the same files.
    """
    for marker, cell_ids in markers.items():
        if marker.exists():
            for cell_id in cell_ids:
                folder = runs / cell_id
                damage = cell_damage(folder)
                if finished_run(folder) is None:
                    damage = run_damage(folder) or f"{RunFiles(folder).record}: no such file"
                if damage is not None:
                    yield Damage(marker, damage)
                    break


def unmeasured(markers: Mapping[Path, tuple[Measurement, list[str]]]) -> Iterator[Damage]:
    """Find the markers of evaluation jobs that are there although an evaluation of theirs is missing or damaged."""
    for marker, (measurement, cell_ids) in markers.items():
        if marker.exists():
            for cell_id in cell_ids:
                if (damage := measurement.damage(cell_id)) is not None:
                    yield Damage(marker, damage)
                    break


def damaged_choices(tunings: Iterable[Tuning], folder: Path) -> Iterator[Damage]:
    """Find the choices of tunings that are there and are not what was written."""
    for tuning in tunings:
        path = choice_file(folder, tuning.id)
        if path.exists():
            try:
                read_choice(path, tuning)
            except ValueError as error:
                yield Damage(path, str(error))


def set_aside(damage: Damage) -> str:
    """Move a damaged file or folder out of the way, an empty file is removed, and return a sentence that says so."""
    path = damage.path
    if path.is_file() and path.stat().st_size == 0:
        path.unlink()
        return f"{damage.reason}; {_MADE_ANEW}"
    return f"{damage.reason}; kept as {move_aside(path).name} and made anew"


def mark_damaged_data(folder: Path) -> str | None:
    """Mark the data of a folder if they are damaged, so that nobody reads them, and return a sentence that says so."""
    if (damage := data_is_damaged(folder)) is None:
        return None
    advice = mark_damaged(folder)
    return f"{damage}; {advice if (folder / META).exists() else _MADE_ANEW}"
