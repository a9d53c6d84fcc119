"""Processes of Python that need no time for imports: forks of ``forked_python.py``, one for each
list of libraries."""

import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from coupled_adam_bench.store.locks import folder_lock

_PIPELINE = (
    "scipy.io",
    "scipy.stats",
    "tenacity",
    "matplotlib.backends.backend_pdf",
    "matplotlib.backends.backend_svg",
    "jinja2",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "torch._dynamo",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "aiohttp",
    "fsspec.implementations.http",
    "multiprocess.pool",
    "requests",
    "sacrebleu",
    "coupled_adam_bench.cli",
    "coupled_adam_bench.evaluation.stage",
    "coupled_adam_bench.report.figures",
    "coupled_adam_bench.report.make",
    "coupled_adam_bench.results.collect",
    "coupled_adam_bench.training.jobs",
)
LIBRARIES = {
    "pipeline": (
        *_PIPELINE,
        "font_cuts:keep_cuts",
        "coupled_adam_bench.data.prepare",
        "datasets",
        "lm_eval.evaluator",
        "lm_eval.tasks",
        "mlflow.store.tracking.sqlalchemy_store",
    ),
    # The hub's own libraries read at their import where it is.
    "pipeline without a hub": _PIPELINE,
    # With what its plugins are, and the code of ours that our rules import.
    "snakemake": (
        "snakemake.cli:get_argument_parser",
        "smart_open",
        "snakemake.report.html_reporter",
        "coupled_adam_bench.cli.arguments",
        "coupled_adam_bench.cli.guard",
        "coupled_adam_bench.cli.start",
        "coupled_adam_bench.evaluation.settings",
        "coupled_adam_bench.report.figures",
        "coupled_adam_bench.results.groups",
        "coupled_adam_bench.training.checks",
    ),
    # With torch's compiler as the first cell of a training loads it, and the optimizers of others.
    "training": (
        "torch._dynamo",
        "torch._inductor.config",
        "pytorch_optimizer",
        "coupled_adam_bench.study.plan",
        "coupled_adam_bench.training.jobs",
        "coupled_adam_bench.cli",
    ),
}
"""What the process of a name imports before it forks, and functions that it calls."""
FOLDER = "CAB_FORKS"
"""The variable that names the folder of the sockets, which all workers of a run of tests share
(conftest.py)."""
OWNER = "CAB_FORKS_OWNER"
"""The variable with the process of that run."""
STARTED: list[Any] = []
"""What the test that runs has started, each the first process of a group: what is left at its end
is killed."""
# For whoever knows a Python by its path: some command lines are done by forks, and others by the
# real one.
STAND_IN = """
import json, os, signal, socket, sys

python, address, forked, *arguments = sys.argv[1:]
command = arguments[arguments[:1] == ["-u"] :]
if command[: len(forked.split())] != forked.split() or "follow" in command:  # which outlives its workflow
    os.execv(python, [python, *arguments])
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(address)
    request = {"arguments": command, "folder": os.getcwd(), "environment": dict(os.environ), "python": None}
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
    fork = int(server.recv(16))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: os.kill(fork, number))
    status = int(server.recv(16))
if status < 0:  # it ended by a signal
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


class Fork:
    """A process that was started as a fork, with what tests need of ``subprocess.Popen``."""

    def __init__(
        self,
        libraries: str,
        arguments: list[str],
        folder: Path,
        environment: dict[str, str],
        said: Path | None = None,
        jobs: str | None = None,
        given: int | None = None,
    ) -> None:
        """Start it; what it says goes to the end of the file ``said``, or is returned by
        :meth:`communicate`.

        The commands that it starts itself are forks as well where it is said with which libraries,
        as ``jobs``. Its standard input is empty, or the open file ``given``.
        """
        self.args = arguments
        self.returncode: int | None = None
        self._files: list[IO[str]] = []
        if said is not None:
            file = said.open("a", encoding="utf-8")
            files = [file, file]
        else:
            self._files = files = [tempfile.TemporaryFile("w+", encoding="utf-8") for _ in range(2)]  # noqa: SIM115 - closed when they are read
        request = {
            "arguments": arguments,
            "folder": str(folder.resolve()),
            "environment": environment,
            "python": None if jobs is None else python_of_jobs(jobs),
        }
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.connect(str(_socket_of(libraries)))
        with Path(os.devnull).open() as nothing:
            first = nothing.fileno() if given is None else given
            numbers = [first, *(file.fileno() for file in files)]
            socket.send_fds(self._server, [json.dumps(request).encode()], numbers)
        if said is not None:
            file.close()
        self.pid = int(self._server.recv(16))
        STARTED.append(self)

    def poll(self) -> int | None:
        """Return the status, or None while it runs."""
        if self.returncode is None and select.select([self._server], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its status."""
        if self.returncode is None:
            if not select.select([self._server], [], [], timeout)[0]:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(self._server.recv(16))
            self._server.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, ...]:
        """Wait for its end and return what it said: stdout and stderr."""
        self.wait(timeout)
        texts = []
        for file in self._files:
            with file:
                file.seek(0)
                texts.append(file.read())
        return tuple(texts)

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end if it still runs."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it and wait for its end."""
        self.send_signal(signal.SIGKILL)
        self.wait()


def _socket_of(libraries: str) -> Path:
    """Return where to ask for forks with these libraries; the first test that asks starts the
    process."""
    folder = Path(os.environ[FOLDER]) / libraries
    folder.mkdir(exist_ok=True)
    address = folder / "socket"
    with folder_lock(folder):
        if not address.exists():
            program = str(Path(__file__).with_name("forked_python.py"))
            command = [
                sys.executable,
                program,
                str(address),
                os.environ[OWNER],
                *LIBRARIES[libraries],
            ]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return address


def real_starts() -> bool:
    """Return whether processes are to be started as a user starts them."""
    return os.environ.get("CAB_REAL_STARTS") == "1"


def python_of_jobs(libraries: str) -> str:
    """Return the path of a Python whose commands of ours are forks with these libraries."""
    if real_starts():
        return sys.executable
    command = _stand_in(libraries, "-m coupled_adam_bench")
    program = _socket_of(libraries).with_name("python")
    with folder_lock(program.parent):
        if not program.exists():
            program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            program.chmod(0o755)
    return str(program)


def python_of_workers() -> str:
    """Return the command of a Python for pytest's workers, forks that have the libraries of most
    tests.

    The first tests need other libraries as well, so these are loaded at the same time.
    """
    if real_starts():
        return sys.executable
    with ThreadPoolExecutor() as threads:
        list(threads.map(_socket_of, ("pipeline", "snakemake", "training")))
    return _stand_in("pipeline", "-c")


def _stand_in(libraries: str, forked: str) -> str:
    """Return the command of a Python which forks for command lines that begin with ``forked``."""
    address = _socket_of(libraries)
    return shlex.join([sys.executable, "-SE", "-c", STAND_IN, sys.executable, str(address), forked])


def python(
    libraries: str,
    arguments: list[str],
    folder: Path,
    environment: dict[str, str],
    said: Path | None = None,
    jobs: str | None = None,
) -> Any:
    """Start Python as :class:`Fork` does, or with CAB_REAL_STARTS=1 as a user does."""
    if not real_starts():
        return Fork(libraries, arguments, folder, environment, said, jobs)
    command: Any = [sys.executable, *arguments]
    if said is None:
        return real(
            command, folder, environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    with said.open("a") as file:
        return real(command, folder, environment, stdout=file, stderr=file)


def real(command: Any, folder: Path, environment: dict[str, str], **options: Any) -> Any:
    """Start a command as a user does, the first process of a group as from a terminal."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment, start_new_session=True, **options
    )
    STARTED.append(process)
    return process


def kill_started(n_before: int) -> None:
    """Kill what was started after the first ``n_before``, with the groups of processes, and has not
    ended."""
    for process in STARTED[n_before:]:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    del STARTED[n_before:]


def run_group(program: str, processes: int, folder: Path) -> None:
    """Run a program in each process of a group; its arguments are the address of a store of theirs,
    and its rank."""
    command = ["-c", program, (folder / "store").as_uri()]
    ranks = [
        python("training", [*command, str(rank)], folder, dict(os.environ))
        for rank in range(processes)
    ]
    errors = [process.communicate(timeout=240)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0] * processes, "\n".join(errors)
