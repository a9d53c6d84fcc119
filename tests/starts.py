"""Starts of the workflow, as a user starts it."""

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

from finished import SNAKEMAKE


@cache
def _forks() -> subprocess.Popen[str]:
    """Start the process of this worker whose forks are Snakemakes."""
    command = [sys.executable, str(Path(__file__).with_name("forked_snakemake.py"))]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    atexit.register(server.stdin.close)  # it ends with its last line
    return server


def snakemake(
    folder: Path, *arguments: str, study: str = "study.yaml", snakefile: str = SNAKEMAKE[2], first: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run Snakemake's command line to its end, in a fork that has imported it; all that it says is in ``stdout``.

    ``first`` is Python code that the fork runs before. Tests of kills, of users and of paths start a command of their
    own.
    """
    cores = [] if "-n" in arguments else ["--cores", "2"]
    server = _forks()
    assert server.stdin is not None and server.stdout is not None
    with tempfile.NamedTemporaryFile(mode="r", encoding="utf-8") as said:
        request = {
            "arguments": ["--snakefile", snakefile, "--nocolor", *arguments, *cores, "--configfile", study],
            "folder": str(folder),
            "environment": dict(os.environ),
            "said": said.name,
            "first": first,
        }
        print(json.dumps(request), file=server.stdin, flush=True)
        if not select.select([server.stdout], [], [], 600)[0]:
            logs = "".join(path.read_text() for path in folder.glob("results/*/logs/*.log"))
            server.kill()
            _forks.cache_clear()
            raise AssertionError(f"no end after 600 s:\n{said.read()}\n{logs}")
        status = int(server.stdout.readline())
        return subprocess.CompletedProcess(request["arguments"], status, stdout=said.read(), stderr="")


def jobs(result: subprocess.CompletedProcess[str], target: str = "all") -> dict[str, int]:
    """Return how many jobs of each rule a dry run announces, without the rule of its target."""
    assert result.returncode == 0, result.stdout
    lines = result.stdout.splitlines()
    if "Job stats:" not in lines:
        return {}
    table = [line.split() for line in lines[lines.index("Job stats:") + 3 :]]
    end = next(index for index, fields in enumerate(table) if fields[:1] == ["total"])
    return {rule: int(count) for rule, count in table[:end] if rule != target}


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
