"""Starts of the workflow, as a user starts it."""

import subprocess
import time
from pathlib import Path

from finished import SNAKEMAKE


def snakemake(folder: Path, *arguments: str, study: str = "study.yaml") -> subprocess.CompletedProcess[str]:
    cores = [] if "-n" in arguments else ["--cores", "2"]
    command = [*SNAKEMAKE, *arguments, *cores, "--configfile", study]
    try:
        return subprocess.run(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600
        )
    except subprocess.TimeoutExpired as error:
        logs = "".join(path.read_text() for path in folder.glob("results/*/logs/*.log"))
        raise AssertionError(f"no end after {error.timeout} s:\n{error.stdout!s}\n{logs}") from None


def finish(folder: Path, *targets: str, study: str = "study.yaml") -> str:
    """Start the workflow as a user does, and return what it said; it must end well."""
    result = snakemake(folder, *targets, study=study)
    assert result.returncode == 0, result.stdout
    assert "Traceback" not in result.stdout
    return result.stdout


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start the workflow up to its tables, first process of a group; what it says goes to ``said.txt``."""
    command = [*SNAKEMAKE, "tables", "--cores", "2", "--configfile", "study.yaml"]
    with (folder / "said.txt").open("w") as said:
        return subprocess.Popen(command, cwd=folder, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)


def begin(folder: Path) -> subprocess.Popen[bytes]:
    """Start the workflow and return when a cell is being trained."""
    process = start(folder)
    deadline = time.monotonic() + 120
    while not any(path.stat().st_size for path in folder.glob("results/runs/*/history.jsonl")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process
