"""Starts of the workflow, as a user starts it.

A study that runs to its end starts Snakemake and a dozen jobs, which take most of their time to import libraries. Here
they are forks of processes that have done so (``forked_snakemake.py``, ``forked_jobs.py``), unless CAB_REAL_STARTS=1.
Tests of kills, users and paths start commands of their own.
"""

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

from coupled_adam_bench.locks import FolderLock

SECONDS = 600
"""Within which a start must end."""

_servers: list[subprocess.Popen[str]] = []


def _serve(program: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a process of forks, which ends with its input."""
    command = [sys.executable, str(Path(__file__).with_name(program)), *arguments]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    _servers.append(server)
    return server


def end_forks() -> None:
    """End the processes of forks."""
    for server in _servers:
        server.communicate()


@cache
def _snakemakes() -> subprocess.Popen[str]:
    """Start the process of this worker whose forks are Snakemakes."""
    return _serve("forked_snakemake.py")


@cache
def _python_of_jobs() -> str:
    """Return a program that runs jobs as forks of one process, which is started by the first worker that asks."""
    folder = Path(os.environ["CAB_FORKS"])  # see conftest.py
    program, lock = folder / "python", FolderLock(folder)
    lock.acquire()
    try:
        if not program.exists():
            server = _serve("forked_jobs.py", str(folder), sys.executable)
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
    finally:
        lock.release()
    return str(program)


def snakemake(
    folder: Path, *arguments: str, study: str = "study.yaml", snakefile: str = SNAKEMAKE[2], first: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run Snakemake's command line to its end; all that it says is in ``stdout``. ``first`` is Python to run before."""
    cores = [] if "-n" in arguments else ["--cores", "2"]
    options = ["--snakefile", snakefile, "--nocolor", *arguments, *cores, "--configfile", study]
    with tempfile.NamedTemporaryFile(mode="r", encoding="utf-8") as said:
        if os.environ.get("CAB_REAL_STARTS") == "1":
            status = _start(folder, options, first, said.name)
        else:
            status = _fork(folder, options, first, said.name, is_dry="-n" in arguments)
        text = said.read()
    if status is None:
        logs = "".join(path.read_text() for path in folder.glob("results/*/logs/*.log"))
        raise AssertionError(f"no end after {SECONDS} s:\n{text}\n{logs}")
    return subprocess.CompletedProcess(options, status, stdout=text, stderr="")


def _start(folder: Path, options: list[str], first: str, said: str) -> int | None:
    program = f"{first}\nfrom snakemake.cli import main; import sys; sys.argv[0] = 'snakemake'; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, *options] if first else [*SNAKEMAKE[:1], *options]
    with Path(said).open("w") as file:
        try:
            return subprocess.run(
                command, cwd=folder, stdout=file, stderr=file, timeout=SECONDS, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return None


def _fork(folder: Path, options: list[str], first: str, said: str, is_dry: bool) -> int | None:
    server = _snakemakes()
    assert server.stdin is not None and server.stdout is not None
    python = sys.executable if is_dry else _python_of_jobs()
    request = {"arguments": options, "folder": str(folder), "said": said, "first": first, "python": python}
    print(json.dumps(request | {"environment": dict(os.environ)}), file=server.stdin, flush=True)
    if not select.select([server.stdout], [], [], SECONDS)[0]:
        server.kill()
        _snakemakes.cache_clear()
        return None
    return int(server.stdout.readline())


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
