"""What tests share: an empty folder to work in, and one study that has run to its end."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from filelock import FileLock
from tiny import REPOSITORY, tiny_study

# A shell that starts the tests in the background has all that they start ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
collect_ignore = ["gpu", "speed"]  # run by their own names: they want a device, a quiet machine


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def snakemake(
    folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Snakemake on ``study.yaml`` of a folder, to its end."""
    return subprocess.run(
        command_of(folder, *arguments),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


def command_of(folder: Path, *arguments: str) -> list[str]:
    """Return the command that runs Snakemake on ``study.yaml`` of a folder."""
    return [
        *(sys.executable, "-m", "snakemake", "--cores", "2", *arguments),
        *("--snakefile", str(REPOSITORY / "Snakefile"), "--directory", str(folder)),
        *("--configfile", str(folder / "study.yaml")),
    ]


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the finished study ``tiny``; tests only read it."""
    # The processes of pytest-xdist have folders beside each other, and the first one makes the study.
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "finished"
    with FileLock(shared / "finished.lock"):
        if not (folder / "results/tiny/report/index.html").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / "study.yaml").write_text(yaml.safe_dump(tiny_study()))
            done = snakemake(folder)
            assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def finished(finished_once: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the finished study, in which the test runs and which it only reads."""
    monkeypatch.chdir(finished_once)
    return finished_once


@pytest.fixture
def copy(finished_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the finished study's folder, in which the test runs and which it may change."""
    folder = tmp_path / "copy"
    shutil.copytree(finished_once, folder)
    monkeypatch.chdir(folder)
    return folder
