"""Processes of Python that need no time for imports: forks of ``forked_python.py``, one for each list of libraries."""

import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from coupled_adam_bench.locks import folder_lock

_PIPELINE = (
    "scipy.stats",
    "statsmodels.stats.multitest",
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
)
LIBRARIES = {
    "pipeline": (
        *_PIPELINE,
        "datasets",
        "lm_eval.evaluator",
        "lm_eval.tasks",
        "transformers.models.auto.tokenization_auto",
        "mlflow.store.tracking.sqlalchemy_store",
    ),
    # The hub's own libraries read at their import where it is.
    "pipeline without a hub": _PIPELINE,
    # Those that Snakemake imports in each start come after it.
    "snakemake": ("snakemake.cli", "smart_open", "snakemake.report.html_reporter"),
    # With our own code, and torch's compiler as the first cell of a training loads it.
    "training": (
        "torch._dynamo",
        "torch._inductor.config",
        "coupled_adam_bench.training.loop",
        "coupled_adam_bench.cli",
    ),
}
FOLDER = "CAB_FORKS"
"""The variable that names the folder of the sockets, which all workers of a run of tests share (conftest.py)."""
OWNER = "CAB_FORKS_OWNER"
"""The variable with the process of that run."""
# For whoever knows a Python by its path: jobs of a workflow are forks, and anything else is done by the real one.
STAND_IN = """
import json, os, socket, sys

python, address, *arguments = sys.argv[1:]
if arguments[:2] == ["-m", "coupled_adam_bench"] and arguments[2] != "follow":  # which outlives its workflow
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(address)
        request = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
        socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
        server.recv(16)
        status = int(server.recv(16))
    sys.exit(status if status >= 0 else 128 - status)
os.execv(python, [python, *arguments])
"""


class Fork:
    """A process that was started as a fork, with what tests need of ``subprocess.Popen``."""

    def __init__(
        self, libraries: str, arguments: list[str], folder: Path, environment: dict[str, str], said: Path | None = None
    ) -> None:
        """Start it; what it says goes to the end of the file ``said``, or is returned by :meth:`communicate`."""
        self.args = arguments
        self.returncode: int | None = None
        self._files: list[IO[str]] = []
        if said is not None:
            file = said.open("a", encoding="utf-8")
            files = [file, file]
        else:
            self._files = files = [tempfile.TemporaryFile("w+", encoding="utf-8") for _ in range(2)]  # noqa: SIM115 - closed when they are read
        request = {"arguments": arguments, "folder": str(folder.resolve()), "environment": environment}
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.connect(str(_socket_of(libraries)))
        with Path(os.devnull).open() as nothing:
            numbers = [nothing.fileno(), *(file.fileno() for file in files)]
            socket.send_fds(self._server, [json.dumps(request).encode()], numbers)
        if said is not None:
            file.close()
        self.pid = int(self._server.recv(16))

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

    def kill(self) -> None:
        """Kill it and wait for its end."""
        self.send_signal(signal.SIGKILL)
        self.wait()


def _socket_of(libraries: str) -> Path:
    """Return where to ask for forks with these libraries; the first test that asks starts the process."""
    folder = Path(os.environ[FOLDER]) / libraries
    folder.mkdir(exist_ok=True)
    address = folder / "socket"
    with folder_lock(folder):
        if not address.exists():
            program = str(Path(__file__).with_name("forked_python.py"))
            command = [sys.executable, program, str(address), os.environ[OWNER], *LIBRARIES[libraries]]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return address


def python_of_jobs() -> str:
    """Return the path of a Python whose jobs of a workflow are forks."""
    address = _socket_of("pipeline")
    program, client = address.with_name("python"), address.with_name("client.py")
    with folder_lock(address.parent):
        if not program.exists():
            client.write_text(STAND_IN)
            command = shlex.join([sys.executable, "-SE", str(client), sys.executable, str(address)])
            program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            program.chmod(0o755)
    return str(program)


def python(libraries: str, arguments: list[str], folder: Path, environment: dict[str, str]) -> Any:
    """Start Python: a fork, or with CAB_REAL_STARTS=1 a process as a user starts it."""
    if os.environ.get("CAB_REAL_STARTS") != "1":
        return Fork(libraries, arguments, folder, environment)
    pipes: Any = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *arguments], cwd=folder, env=environment, **pipes)


def run_group(program: str, processes: int, folder: Path) -> None:
    """Run a program in each process of a group; its arguments are the address of a store of theirs, and its rank."""
    command = ["-c", program, (folder / "store").as_uri()]
    ranks = [python("training", [*command, str(rank)], folder, dict(os.environ)) for rank in range(processes)]
    errors = [process.communicate(timeout=240)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0] * processes, "\n".join(errors)
