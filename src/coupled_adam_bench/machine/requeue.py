"""What a SLURM job of training does at its time limit, which is no failure: it stops in time and is
queued again."""

import os
import signal
import threading
import time

from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.machine.slurm import ask, parse_duration

_ASK_AGAIN_SECONDS = 60.0
"""How long to wait after SLURM did not answer."""
_LOOK_SECONDS = 900.0
"""How long a job may not know that its limit was changed."""


def requeue_own_job() -> bool:
    """Put the SLURM job of this process back into the queue, and return whether SLURM has agreed.

    SLURM ends the job and starts it again with the same number, so Snakemake sees it run on and
    counts no retry. A job that SLURM no longer calls running was cancelled or has passed its limit:
    it does not come back.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return False
    try:
        if ask("squeue", "--noheader", "--format=%T", "--jobs", job) != "RUNNING":
            return False
        ask("scontrol", "requeue", job)
    except ValueError as error:
        say(f"the job is not put back into the queue: {error}")
        return False
    say(f"SLURM job {job} goes back into the queue; it goes on from its checkpoint")
    return True


def stop_before_the_limit(seconds: float) -> None:
    """Send SIGTERM to this process ``seconds`` before the time limit of its SLURM job, if it is in
    one.

    A quarter of the time that is left now is the most. SLURM is asked for the time that is left,
    and asked again before the signal: site, partition and study have all had their word in it, and
    it can be changed. A job that asked for this with sbatch's ``--signal`` would take that option,
    and ``slurm_extra`` with it, from the site.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is not None:
        threading.Thread(target=_watch, args=(job, seconds), daemon=True).start()


def _watch(job: str, before: float) -> None:
    left = _seconds_left(job)
    while left is None:  # SLURM does not answer
        time.sleep(_ASK_AGAIN_SECONDS)
        left = _seconds_left(job)
    before = min(before, left / 4)
    while left is None or left > before:
        wait = _ASK_AGAIN_SECONDS if left is None else min(left - before, _LOOK_SECONDS)
        time.sleep(wait)
        left = _seconds_left(job)
    say(f"SLURM job {job} has {left:.0f} s left: training is asked to stop")
    os.kill(os.getpid(), signal.SIGTERM)


def _seconds_left(job: str) -> float | None:
    """Return the seconds that a job has left, infinity without a limit; None, and a line that says
    why, if unknown."""
    try:
        return parse_duration(ask("squeue", "--noheader", "--format=%L", "--jobs", job))
    except ValueError as error:
        say(f"the time limit of the job is not known: {error}")
        return None
