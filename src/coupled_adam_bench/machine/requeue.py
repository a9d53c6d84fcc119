"""Puts a job of SLURM that was warned of its time limit back into the queue, since a limit is no failure of the job."""

import os
import subprocess

from coupled_adam_bench.machine.progress import say

_ANSWER_SECONDS = 30.0
"""How long SLURM may take to answer; the warning comes two minutes before the end of a job."""


def requeue_own_job() -> bool:
    """Put the SLURM job of this process back into the queue, and return whether SLURM has agreed.

    SLURM ends the job and starts it again with the same number, so Snakemake sees it run on and counts no retry. A job
    that SLURM no longer calls running was cancelled or has passed its limit: it does not come back.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or _ask("squeue", "--noheader", "--format=%T", "--jobs", job) != "RUNNING":
        return False
    agreed = _ask("scontrol", "requeue", job) is not None
    if agreed:
        say(f"SLURM job {job} goes back into the queue; it goes on from its checkpoint")
    return agreed


def _ask(*command: str) -> str | None:
    """Return what a command of SLURM's prints; ``None``, and a line on stderr that says why, if it fails."""
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"the job is not put back into the queue: {error}")
        return None
    if result.returncode != 0:
        say(f"the job is not put back into the queue: {' '.join(command)}: {result.stderr.strip()}")
        return None
    return result.stdout.strip()
