"""Runs a study by Snakemake in a folder, as a user does from the terminal."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

SNAKEFILE = Path(__file__).parents[3] / "Snakefile"


def start(file: Path, folder: Path, cores: int, log: IO[str] | None = None) -> int:
    """Run the study ``file`` in ``folder`` and return Snakemake's exit status.

    What Snakemake says goes to ``log``, or to the terminal. Ctrl-C ends it behind checkpoints,
    without a lock.
    """
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(SNAKEFILE)]
    command += ["--directory", str(folder), "--cores", str(cores), "--configfile", str(file)]
    # The user's own optimizers lie in the folder of the call.
    modules = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(Path.cwd())]))
    environment = os.environ | {"PYTHONPATH": modules}
    # In a session of its own it is stopped once, by us.
    with subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=log, stderr=log
    ) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGINT)
            process.wait()
            raise
