"""Starts of the workflow, as a user starts it.

A study that runs to its end starts Snakemake and a dozen jobs, which take most of their time to
import libraries. Here they are forks of processes that have done so (``forks.py``), unless
CAB_REAL_STARTS=1. Tests of users and paths start commands of their own.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from finished import ROOT, SNAKEMAKE
from forks import FOLDER, Fork, python, real, real_starts
from waits import wait_until

SECONDS = 600
"""Within which a start must end."""


def _process(folder: Path, options: list[str], said: Path, first: str = "") -> Any:
    """Start Snakemake, and let its jobs be forks as well; what they say goes to the file
    ``said``."""
    program = (
        f"{first}\nfrom snakemake.cli import main; import sys; sys.argv[0] = 'snakemake';"
        " main(sys.argv[1:])"
    )
    if real_starts() or "LD_PRELOAD" in os.environ:  # which only a new process reads
        command = [sys.executable, "-c", program, *options] if first else [*SNAKEMAKE[:1], *options]
        with said.open("w") as file:
            return real(command, folder, dict(os.environ), stdout=file, stderr=file)
    jobs = None if "-n" in options else "pipeline"
    return Fork("snakemake", ["-c", program, *options], folder, dict(os.environ), said, jobs)


def snakemake(
    folder: Path,
    *arguments: str,
    study: str = "study.yaml",
    snakefile: str = SNAKEMAKE[2],
    first: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run Snakemake's command line to its end; all that it says is in ``stdout``. ``first`` is
    Python to run before."""
    # Tests read the jobs of a dry run, which are listed with -p alone.
    more = ["-p"] if "-n" in arguments else ["--cores", "2"]
    options = ["--snakefile", snakefile, "--nocolor", *arguments, *more, "--configfile", study]
    number, name = tempfile.mkstemp(prefix="said-", dir=os.environ[FOLDER])
    os.close(number)
    process = _process(folder, options, Path(name), first)
    try:
        status = process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        logs = "".join(path.read_text() for path in folder.glob("results/*/logs/*.log"))
        raise AssertionError(
            f"no end after {SECONDS} s:\n{Path(name).read_text()}\n{logs}"
        ) from None
    return subprocess.CompletedProcess(
        options, status, stdout=Path(name).read_text(encoding="utf-8"), stderr=""
    )


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


def refused(folder: Path, *targets: str, study: str = "study.yaml") -> str:
    """Start the workflow, and return what it said; it must stop before the first job, with a
    sentence, and leave no folder."""
    results = folder / "results"
    had_results = results.exists()
    result = snakemake(folder, *targets, study=study)
    assert result.returncode != 0
    assert "Traceback" not in result.stdout
    assert results.exists() == had_results
    assert not (results / "runs").exists()
    return result.stdout


def make_tables(folder: Path, study: str = "tiny", *options: str) -> None:
    """Make the tables of a study that is evaluated.

    The target ``tables`` makes the whole report, whose figures take longer than all that is before.
    """
    command = ["-m", "coupled_adam_bench", "report", "--plan", f"results/{study}/plan.json"]
    _report_tables([*command, "--templates", str(ROOT / "templates"), *options], folder)


def make_planned_tables(folder: Path, *arguments: str) -> None:
    """Make the tables of a study by the command that the target ``tables`` has for its report, the
    one job that is left to it."""
    planned = snakemake(folder, "tables", "-n", *arguments)
    assert jobs(planned, target="tables") == {"report_of_study": 1}, planned.stdout
    (command,) = re.findall(r"^Shell command: (.* report .*) > .* 2>&1$", planned.stdout, re.M)
    _report_tables(shlex.split(command)[1:], folder)


def _report_tables(command: list[str], folder: Path) -> None:
    """Run a command of a report for its tables alone; it must end well."""
    made = python("pipeline", [*command, "--only", "tables"], folder, dict(os.environ))
    _, errors = made.communicate(SECONDS)
    assert made.returncode == 0, errors


def start(folder: Path, *targets: str, said: str = "said.txt") -> Any:
    """Start the workflow, first process of a group, which will run to its end; ``said`` gets what
    it says."""
    options = [*SNAKEMAKE[1:], *targets, "--cores", "2", "--configfile", "study.yaml"]
    return _process(folder, options, folder / said)


def begin(folder: Path) -> Any:
    """Start the workflow as :func:`start` does, and return when a cell is being trained."""
    process = start(folder, "tables")

    def trains() -> bool:
        assert process.poll() is None
        histories = folder.glob("results/runs/*/history.jsonl")
        return any(path.stat().st_size for path in histories)

    wait_until(trains, 300)
    return process
