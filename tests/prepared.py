"""Data that preparation has made."""

from pathlib import Path

from planned import only, study_and_data

from coupled_adam_bench.data.prepare import prepare
from coupled_adam_bench.study.plan import Plan


def prepared(plan: Plan, folder: Path, workers: int = 1) -> Path:
    """Prepare the data of a plan in a folder, and return that."""
    prepare(*study_and_data(only(plan)), folder, workers)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """The files that were prepared; the lock, which names the last process, is hidden."""
    files = [path for path in sorted(folder.rglob("[!.]*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
