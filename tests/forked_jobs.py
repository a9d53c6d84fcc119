"""Runs jobs of studies in forks of this process, which has imported their libraries, and no code of the project.

Starting Python and loading torch, lm-eval or MLflow is most of what the job of a small study takes. The arguments are a
folder and the Python of the tests. The folder gets a program ``python``: it hands ``-m coupled_adam_bench ...`` on to
this process and becomes the real Python for anything else. This process ends with its standard input.
"""

import gc
import json
import os
import runpy
import select
import shlex
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path

LIBRARIES = (
    "scipy.stats",
    "statsmodels.stats.multitest",
    "matplotlib.backends.backend_pdf",
    "matplotlib.backends.backend_svg",
    "jinja2",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "torch._dynamo",
    "datasets",
    "lm_eval.evaluator",
    "lm_eval.tasks",
    "transformers.models.auto.tokenization_auto",
    "mlflow.store.tracking.sqlalchemy_store",
)
CLIENT = """
import json, os, socket, sys

python, address, *arguments = sys.argv[1:]
if arguments[:2] == ["-m", "coupled_adam_bench"] and arguments[2] != "follow":  # which outlives its workflow
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(address)
        except OSError:  # it has ended
            pass
        else:
            request = json.dumps([arguments[2:], os.getcwd(), dict(os.environ)]).encode()
            socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
            server.sendall(request)
            sys.exit(int(server.recv(8)))
os.execv(python, [python, *arguments])
"""


def run(connection: socket.socket) -> None:
    """Run the command of a request as a shell would, in a fork that ends as any Python ends."""
    length, files, _, _ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as stream:
        arguments, folder, environment = json.loads(stream.read(int.from_bytes(length, "big")))
    if child := os.fork():
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        connection.sendall(str(status if status >= 0 else 128 - status).encode())
        os._exit(0)
    connection.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = ["coupled_adam_bench", *arguments]
    runpy.run_module("coupled_adam_bench", run_name="__main__", alter_sys=True)


def serve(folder: Path, python: str) -> None:
    """Make the folder's program, and fork for each request, until standard input ends."""
    address, client, program = folder / "socket", folder / "client.py", folder / "python"
    client.write_text(CLIENT)
    command = shlex.join([python, "-SE", str(client), python, str(address)])
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(address))
        server.listen(100)
        print("ready", flush=True)
        while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
            connection, _ = server.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                server.close()
                run(connection)
                return
            connection.close()


for library in LIBRARIES:
    import_module(library)
gc.freeze()  # else the end of each fork would look at all of it
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
serve(Path(sys.argv[1]), sys.argv[2])
