"""A small study that runs through real Snakemake once, for all tests and all workers of
pytest-xdist."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from coupled_adam_bench.store.files import read_json, write_json
from coupled_adam_bench.store.locks import FolderLock
from coupled_adam_bench.store.paths import IMPORTED_FROM

ROOT = Path(__file__).parents[1]
SNAKEMAKE = [
    str(Path(sys.executable).with_name("snakemake")),
    "--snakefile",
    str(ROOT / "Snakefile"),
    "--nocolor",
]
TABLES = ("results.csv", "tests.csv", "tables/table1.tex", "tables/table1.html")
HOSTILE = "a b'c \u00fc"
"""A space, a quote and an umlaut: the name of a folder in which every rule must quote what it
names."""


def draws(variable: str, by_night: int, by_day: int) -> list[Any]:
    """Return the numbers of random draws: those after ``by_day`` are nightly; ``variable`` sets how
    many there are."""
    first = int(os.environ.get("CAB_FIRST_DRAW", "0"))
    numbers = range(first, first + int(os.environ.get(variable, by_night)))
    return [
        *numbers[:by_day],
        *(pytest.param(number, marks=pytest.mark.nightly) for number in numbers[by_day:]),
    ]


def small(settings: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Two optimizers, two seeds, twenty steps, all of a kind in one job."""
    settings["grid"][0] |= {"tokens": [{"steps": 20}], "seeds": [1, 2]}
    settings["execution"] |= {"train_cells_per_job": 4, "evaluation_cells_per_job": 4}
    return settings | changes


def outputs(folder: Path, study: str = "tiny") -> dict[str, bytes]:
    return {name: (folder / "results" / study / name).read_bytes() for name in TABLES}


def write(folder: Path, settings: dict[str, Any], name: str = "study.yaml") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(yaml.safe_dump(settings))


def read(folder: Path, name: str = "study.yaml") -> dict[str, Any]:
    """Read the settings that :func:`write` has written."""
    settings: dict[str, Any] = yaml.safe_load((folder / name).read_text())
    return settings


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that ``make`` fills in the worker that asks for it first; the others wait."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    lock, made = FolderLock(folder), folder / "made"
    lock.acquire()
    try:
        if not made.exists():
            make(folder)
            made.touch()
    finally:
        lock.release()
    return folder


def virtual_environment(home: Path) -> Path:
    """Make one in ``home`` with the packages of this process, and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / ".venv"], check=True)
    (packages,) = (home / ".venv").glob("lib/python*/site-packages")
    here = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "others.pth").write_text(
        "".join(f"import site; site.addsitedir({path!r})\n" for path in here)
    )
    return home / ".venv/bin/python"


def copied(folder: Path, to: Path) -> Path:
    """Copy a working folder with its times of files, so that a start finds it as if it had always
    been there."""
    shutil.copytree(folder, to, symlinks=True)
    for path in to.glob("results/*/mlflow.json"):
        times = path.stat()
        write_json(path, read_json(path) | {IMPORTED_FROM: str((to / "results").resolve())})
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return to


def finish_in_hostile_folder(folder: Path, settings: dict[str, Any]) -> None:
    """Run the study in a folder, by a Python in a folder, whose names every rule must quote."""
    home = folder / HOSTILE
    write(home / "study", settings)
    command = [virtual_environment(home), "-m", "snakemake", *SNAKEMAKE[1:], "--cores", "2"]
    result = subprocess.run(
        [*command, "--configfile", "study.yaml"],
        cwd=home / "study",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout
    assert "Traceback" not in result.stdout
