"""Imports a study into MLflow again and again while its cells train, in a process beside the jobs of the workflow.

The workflow starts the process and holds the other end of its standard input. However the workflow ends, the kernel
closes that end, and the process ends with it: an import that is cut off so does no harm, since the next one adds what
is missing. No job waits for it, and the last import, which is a job, ends it first.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import IO, Any

from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store.locks import folder_lock, is_held
from coupled_adam_bench.study.plan import load_plan
from coupled_adam_bench.tracking.importing import import_study

LOCK = ".mlflow-live.lock"
_PAUSE = 20
"""The pause after an import is at least as many times as long as the CPU time of the import."""
_LONGEST_PAUSE = 600.0
"""Seconds, after imports that failed; each such pause is twice as long as the one before."""


def follow_study(plan_file: Path, seconds: float) -> None:
    """Import the study of a plan every so many ``seconds``, until standard input ends; never returns.

    An import that fails is said once, and the next one comes later.
    """
    os.nice(19)
    Thread(target=_end_with, args=(sys.stdin.buffer,), daemon=True).start()
    with folder_lock(plan_file.parent, LOCK):
        follow(lambda: import_study(load_plan(plan_file)), seconds)


def _end_with(stream: IO[bytes]) -> None:
    """End this process at the end of the stream, even within a request that hangs."""
    stream.read()
    os._exit(0)


def follow(imported: Callable[[], Any], seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Call ``imported`` for ever, with pauses that are longer after calls that failed or took much CPU time."""
    pause, said = seconds, ""
    while True:
        sleep(pause)
        start = time.process_time()
        try:
            imported()
            pause, reason = seconds, ""
        except (ValueError, OSError) as error:
            pause, reason = max(seconds, min(2 * pause, _LONGEST_PAUSE)), str(error)
        if reason and reason != said:
            say(f"MLflow has not everything yet: {reason}")
        said = reason
        pause = max(pause, _PAUSE * (time.process_time() - start))


def end_live_import(study_dir: Path) -> None:
    """End the import beside the jobs of a study, if there is one on this machine."""
    try:
        holder = (study_dir / LOCK).read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    found = re.fullmatch(rf"pid (\d+) on {re.escape(os.uname().nodename)}\n", holder)
    # The kernel drops the lock with its process: while it is held, the process is the one that wrote its number.
    if found and is_held(study_dir, LOCK):
        os.kill(int(found[1]), signal.SIGTERM)
