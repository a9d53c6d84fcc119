"""This process: its variables for a while, how often it looks for garbage, and the commit of its
source."""

import contextlib
import gc
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NEW_OBJECTS = 50_000
_LOOK_SECONDS = 1.0


@contextlib.contextmanager
def environment(settings: dict[str, str]) -> Iterator[None]:
    """Set variables of the environment for a while."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def rarely_collected() -> Iterator[None]:
    """Look for garbage after 50,000 new objects, far more rarely than usual, as long as this is
    entered.

    Imports make many objects and hardly any garbage: to look at all of them again and again is a
    tenth to a fifth of their CPU time. It is not for work with tensors, of which few objects hold
    much memory.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def end_with_parent(seconds: float) -> None:
    """Ask this process to stop when its parent has ended, and kill it if it goes on for ``seconds``
    after that.

    A process that waits for another one in a collective operation of torch sees no signal.
    Snakemake takes SIGTERM in its main thread, which may hold the lock that its handler waits for.
    So a thread looks.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def pass_signals_on() -> None:
    """Have SIGINT and SIGTERM to this process reach its jobs, too, a moment later.

    A terminal and a cluster send a signal to all processes of a run, and a supervisor, a notebook
    or a container only to the first, so that its jobs would go on for hours. A process in another
    session gets no signal, as from a terminal. So a job may get the signal twice. Only the main
    thread of a program can be sent signals, so elsewhere nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    import psutil  # of the pipeline, which the command line does without

    # Whatever handler Snakemake sets, and even if it waits for a lock in it, Python writes here.
    numbers, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)

    def watch() -> None:
        while True:
            number = os.read(numbers, 1)[0]
            if number not in (signal.SIGINT, signal.SIGTERM):
                continue
            # What is started from now on ends the run, and is to do so undisturbed.
            jobs = _children()
            time.sleep(_LOOK_SECONDS)  # those that have had the signal have mostly ended by then
            for job in jobs:
                with contextlib.suppress(psutil.NoSuchProcess):
                    job.send_signal(number)

    threading.Thread(target=watch, daemon=True).start()


def _children() -> list[Any]:
    """Return all processes that this one has started, and those that they have, in its group."""
    import psutil

    group, found = os.getpgrp(), []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process.pid) == group:
                found.append(process)
    return found


def git_revision() -> str | None:
    """Return the commit, with ``-dirty`` if tracked files were changed, or ``None`` outside a git
    repository."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
        ).stdout

    try:
        # An installed copy may be in an ignored folder of another repository.
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").strip()
    except (OSError, subprocess.CalledProcessError):
        return None
