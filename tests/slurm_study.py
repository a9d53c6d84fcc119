"""Helpers for tests that run a study on the SLURM cluster of tests/slurm."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import finished
from finished import ROOT


@dataclass(frozen=True)
class Job:
    """A job of SLURM as ``squeue`` shows it; the comment has the rule and its wildcards."""

    number: str
    state: str
    comment: str


class StudyOnSlurm:
    """A study that Snakemake runs in a folder, with the shipped profile, on a cluster."""

    def __init__(self, folder: Path, study: Path, cluster: dict[str, str]) -> None:
        self.folder, self.study = folder, study
        own = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SNAKEMAKE", "SLURM"))
        }
        self.environment = own | cluster
        self.log = folder / "snakemake.log"
        self.earlier: set[str] = set()
        self.earlier = {job.number for job in self.jobs()}

    def slurm(self, *command: str) -> str:
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=True
        ).stdout

    def jobs(self, *states: str) -> list[Job]:
        """Return the study's jobs of these states, by default of all; SLURM remembers ended ones
        for an hour."""
        listed = self.slurm("squeue", "-h", "-t", ",".join(states) or "all", "-o", "%A|%T|%k")
        jobs = [Job(*line.split("|", 2)) for line in listed.splitlines()]
        return [job for job in jobs if job.number not in self.earlier]

    def restarts(self, job: Job) -> int:
        facts = dict(
            fact.split("=", 1)
            for fact in self.slurm("scontrol", "show", "job", job.number).split()
            if "=" in fact
        )
        return int(facts["Restarts"])

    def start(
        self, *arguments: str, profile: bool = True, python: Path = Path(sys.executable)
    ) -> subprocess.Popen[bytes]:
        """Start Snakemake in a process group of its own, as from a terminal."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # Behind `&` a shell has Ctrl-C ignored, and what it starts inherits that.
        command = [
            "env",
            "--default-signal=INT",
            python,
            "-m",
            "snakemake",
            "--cores",
            "all",
            "--configfile",
            self.study,
        ]
        if profile:
            command += ["--profile", "slurm", "--slurm-init-seconds-before-status-checks", "1"]
        command += ["--directory", self.folder, *arguments]
        with self.log.open("w") as file:  # ROOT is where `--profile slurm` finds the profile
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def outputs(self) -> dict[str, bytes]:
        return finished.outputs(self.folder)

    def history_lines(self, *cells: str) -> int:
        """Return how many lines the histories of cells have, by default of all."""
        runs = self.folder / "results" / "runs"
        files = [runs / cell / "history.jsonl" for cell in cells] or list(
            runs.glob("*/history.jsonl")
        )
        return sum(file.read_bytes().count(b"\n") for file in files if file.exists())


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a process that a failed test leaves."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(60)


def wait_for(condition: Callable[[], object], what: str, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.3)
