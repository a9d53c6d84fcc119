"""Runs a study by Snakemake in a folder, as a user does from the terminal."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

SNAKEFILE = Path(__file__).parents[3] / "Snakefile"
POLL_SECONDS = 0.5


def environment() -> dict[str, str]:
    """Return the variables of a process that finds own optimizers in the folder of the call."""
    modules = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(Path.cwd())]))
    return os.environ | {"PYTHONPATH": modules}


def start(
    file: Path,
    folder: Path,
    cores: int,
    log: IO[str] | None = None,
    target: str = "all",
    watch: Callable[[], None] | None = None,
) -> int:
    """Run the study ``file`` in ``folder`` up to a target, and return Snakemake's exit status.

    What Snakemake says goes to ``log``, or to the terminal; ``watch`` is called while it runs.
    Ctrl-C ends it behind checkpoints, without a lock.
    """
    if not SNAKEFILE.is_file():
        raise ValueError(f"{SNAKEFILE}: missing; studies run from a clone of the repository")
    command = [sys.executable, "-m", "snakemake", target, "--snakefile", str(SNAKEFILE)]
    command += ["--directory", str(folder), "--cores", str(cores), "--configfile", str(file)]
    # In a session of its own it is stopped once, by us.
    with subprocess.Popen(
        command, env=environment(), start_new_session=True, stdout=log, stderr=log
    ) as process:
        try:
            while watch is not None and process.poll() is None:
                watch()
                time.sleep(POLL_SECONDS)
            return process.wait()
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGINT)
            process.wait()
            raise
