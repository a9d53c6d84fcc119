"""Starts commands of the bench in processes of their own, as jobs of Snakemake are, and waits."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile

LINES = 5
"""How much of what a failed command said is told."""
POLL_SECONDS = 0.1


def environment(threads: int = 1) -> dict[str, str]:
    """Return the variables of a process that finds own optimizers in the folder of the call."""
    modules = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(Path.cwd())]))
    # A file there does not hide a library's module.
    own = {"PYTHONPATH": modules, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": str(threads)}
    return os.environ | own


def start(
    commands: Sequence[Sequence[str]],
    folder: Path,
    watch: Callable[[], object] | None = None,
    threads: int = 1,
) -> None:
    """Run commands of the bench in ``folder``, all at the same time, and wait for them.

    ``watch`` is called while they run. Ctrl-C ends them behind checkpoints. ``ValueError`` has the
    end of what they said if one of them fails.
    """
    bench = [sys.executable, "-m", "coupled_adam_bench"]
    with TemporaryFile("w+") as log:
        # In sessions of their own they are stopped once, by us.
        processes = [
            subprocess.Popen(
                [*bench, *command],
                cwd=folder,
                env=environment(threads),
                start_new_session=True,
                stdout=log,
                stderr=log,
            )
            for command in commands
        ]
        try:
            while any(process.poll() is None for process in processes):
                if watch is not None:
                    watch()
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            for process in processes:
                process.send_signal(signal.SIGINT)
            raise
        finally:
            statuses = [process.wait() for process in processes]
        if any(statuses):
            log.seek(0)
            said = "\n".join(log.read().splitlines()[-LINES:]).removeprefix("error: ")
            raise ValueError(said or f"{commands[0][0]} has ended with the statuses {statuses}")
