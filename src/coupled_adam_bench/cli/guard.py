"""What a start of the workflow finds: locks of a killed run, files of the future, files that are
not what was written.

A study's files form a chain: token bins, trained cells, evaluations. Each link has checksums.
Before jobs are planned, every link of the study is compared with them; what differs is set aside,
so that the workflow makes it anew. The run of the workflow that does this has the lock of the
study's folder: there is no other.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from coupled_adam_bench.cli.jobs import Jobs
from coupled_adam_bench.data.check import META, TREES, data_is_damaged, mark_damaged
from coupled_adam_bench.records.stored import Measurement
from coupled_adam_bench.report.manifest import made_before
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import ASIDE, kind_of, move_aside
from coupled_adam_bench.store.locks import LOCK
from coupled_adam_bench.store.markup import first_of
from coupled_adam_bench.store.runs import cell_damage, finished_run, run_damage
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.plan.tuning import chosen_values, read_choice
from coupled_adam_bench.tracking.importing import LOCK as IMPORT_LOCK

_MADE_ANEW = "it is made anew when a job needs it"


def check_readable(folders: Iterable[Path]) -> None:
    """Raise ``ValueError`` that names the first of ``folders``, parents first, that is away or may
    not be read."""
    for folder in folders:
        if folder.is_symlink() and not folder.exists():
            raise ValueError(
                f"{folder}: this is a link to a folder that is not there; mount that, or remove the"
                " link"
            )
        if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
            raise ValueError(
                f"{folder}: you may not read this folder. Where a group works in one results"
                f" folder, its owner types `chmod -R g+rwX {paths.RESULTS}`, and each user types"
                " `umask 002` before a start"
            )


_OF_FILES = {
    ".bin", ".csv", ".damaged", ".db", ".done", ".html", ".json", ".jsonl", ".lock", ".log", ".md",
    ".npy", ".npz", ".pdf", ".safetensors", ".svg", ".tex", ".tsv", ".txt",
}  # fmt: skip
"""The endings of our files, which no folder of ours has."""
_OF_STUDY = ("data", "training", "evaluation", paths.TUNING, "logs", "tables", "figures", "report")
_OF_RUN = ("checkpoints", "model", "evaluations")


def _no_files(folder: Path) -> Iterator[Path]:
    """Yield what stands in a folder of ours in the place of a file and is none, without opening
    anything."""
    try:
        entries = list(os.scandir(folder))
    except OSError:  # it is missing, no folder, or of somebody else
        return
    for entry in entries:
        path = Path(entry.path)
        if ASIDE in entry.name or entry.is_file(follow_symlinks=False) or path.is_file():
            continue
        if path.is_dir() and path.suffix not in _OF_FILES and entry.name != LOCK:
            yield from () if path.is_symlink() else _no_files(path)
        elif os.path.lexists(path):  # not a temporary file that has just got its name
            yield path


def _misplaced(folder: Path, subfolders: Iterable[str] = ()) -> Iterator[Path]:
    """Yield what stands where this folder, its subfolders or a file in them belongs, and is
    none."""
    for path in (folder, *(folder / name for name in subfolders)):
        if os.path.lexists(path) and not path.is_dir():
            yield path
    yield from _no_files(folder)


def check_places(plan: Plan) -> None:
    """Raise ``ValueError`` that names whatever stands where a file or folder of a study belongs,
    and is none.

    It may be a folder in the place of a file, a file in that of a folder, a link to nothing, a pipe
    or a socket. This comes before anything there is read, since to open a pipe may take for ever.
    """
    results, study_dir = paths.RESULTS, paths.study_dir(plan.name)
    found = [
        file
        for file in (paths.MLFLOW_DB, results / IMPORT_LOCK)
        if os.path.lexists(file) and not file.is_file()
    ]
    for folder in (
        results,
        paths.RUNS,
        *{path.parent for path in map(paths.data_dir, plan.data_ids)},
    ):
        found += [folder] if os.path.lexists(folder) and not folder.is_dir() else []
    found += _misplaced(paths.GPU_LEASES)
    found += _misplaced(study_dir, _OF_STUDY)
    for data_id in plan.data_ids:
        found += _misplaced(paths.data_dir(data_id), TREES)
    if not found:  # a choice can be read, and a damaged one is set aside later
        with suppress(ValueError):
            plan = plan.with_choices(chosen_values(plan.tunings.values(), study_dir / paths.TUNING))
    for folder in (*map(paths.run_dir, plan.trained), *map(paths.trunk_dir, plan.trunks)):
        found += _misplaced(folder, _OF_RUN)
    if found:
        places = [f"{path} ({kind_of(path)})" for path in dict.fromkeys(found)]
        raise ValueError(
            "something else stands where a file or a folder of this study belongs:"
            f" {first_of(places)}; move or remove it, and start again"
        )


def remove_stale_locks(snakemake_dir: Path, study_dir: Path, left_by: str) -> str | None:
    """Remove the locks that a killed run of Snakemake left on a study's files, and return a
    sentence that says so.

    Called by the process that holds the lock of the study's folder, so no other run of the study is
    alive. ``left_by`` is what the run before wrote into it. Where that was on another machine, the
    file system may have locks that end at the machine: Snakemake's stay, and the sentence says what
    to type.
    """
    stale = [
        file for file in (snakemake_dir / "locks").glob("*.lock") if f"{study_dir}/" in _text(file)
    ]
    if not stale:
        return None
    host = left_by.rpartition(" on ")[2]
    if host not in ("", os.uname().nodename):
        return (
            f"{snakemake_dir / 'locks'}: locks of a run on {host}; if that run is no longer alive,"
            " remove them with `snakemake --unlock` and start again"
        )
    for file in stale:
        file.unlink(missing_ok=True)
    return (
        f"{snakemake_dir / 'locks'}: an earlier run was killed and left its locks; they are removed"
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:  # its run has ended
        return ""


def outdated_report(study_dir: Path, made_for: str) -> Iterator[str]:
    """Remove the marker of a report that was made from another plan, measured otherwise, or edited;
    yield a sentence.

    The job then makes it anew. Snakemake notes plans in the working folder, and does not know what
    was run from another one. The files stay until others are made.
    """
    before = made_before(study_dir)
    if before.edited or before.made_for != made_for:
        (study_dir / paths.REPORTED).unlink(missing_ok=True)
    if before.edited:
        yield (
            f"{study_dir}: edited or damaged since the report was made: {first_of(before.edited)};"
            f" all of it is made anew, and what differs is kept as NAME{ASIDE}1"
        )


def untrained(run_dir: Path) -> str | None:
    """Return a sentence if a cell is not trained, or its run damaged.

    Training such a cell again goes on from its last checkpoint, and ends with the same files.
    """
    damage = run_damage(run_dir)
    if damage is None and finished_run(run_dir) is None:
        return f"{run_dir.name} is not trained yet; it will be"
    damage = damage or cell_damage(run_dir)
    return damage and f"{damage}; {_MADE_ANEW}"


def unmeasured(measurement: Measurement, cell_id: str) -> str | None:
    """Return a sentence if a cell is not measured, or its evaluation damaged."""
    if (damage := measurement.damage(cell_id)) is None:
        return None
    record = measurement.files(cell_id).record
    if not record.exists() or (finished_run(record.parent) and not measurement.is_there(cell_id)):
        return f"{cell_id} has no {measurement.stage.name} yet; it will be measured"
    return f"{damage}; {_MADE_ANEW}"


def set_aside_damage(jobs: Jobs) -> Iterator[str]:
    """Remove the markers of jobs whose products are missing or damaged, so that they run again;
    yield sentences.

    Damaged data and choices of tunings are set aside.
    """
    for folder in map(paths.data_dir, jobs.plan.data_ids):
        if damage := data_is_damaged(folder):
            advice = mark_damaged(folder)
            yield f"{damage}; {advice if (folder / META).exists() else _MADE_ANEW}"
    for tuning in jobs.plan.tunings.values():
        path = jobs.choice(tuning.id)
        if not path.exists():
            continue
        try:
            read_choice(path, tuning)
        except ValueError as error:
            yield f"{error}; kept as {move_aside(path).name} and made anew"
    for marker, problems in _products(jobs):
        if not marker.exists():
            continue
        if problem := next(filter(None, problems), None):
            # A start of another study with the same run may be faster.
            marker.unlink(missing_ok=True)
            yield problem


def _products(jobs: Jobs) -> Iterator[tuple[Path, Iterator[str | None]]]:
    """Yield the markers of jobs, from the data to the evaluations, each with what is wrong with its
    products."""
    for data in jobs.plan.data_ids:
        meta = paths.data_dir(data) / META
        yield (
            jobs.prepared(data),
            iter([None if meta.is_file() else f"{meta}: no such file; {_MADE_ANEW}"]),
        )
    for job, cells in jobs.training.items():
        yield jobs.trained(job), (untrained(paths.run_dir(cell)) for cell in jobs.ids(cells))
    for batch, cells in jobs.evaluation.items():
        for (stage, study), measurement in jobs.measurements.items():
            if measurement is not None and study == jobs.plan.cells[cells[0]].study.name:
                yield (
                    jobs.measured(batch, stage),
                    (unmeasured(measurement, cell) for cell in jobs.ids(cells)),
                )
