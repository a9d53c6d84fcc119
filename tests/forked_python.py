"""A Python that runs command lines in forks of itself, with libraries imported that would take each
of them seconds.

Its arguments are a socket's address, the process with which it ends, and the libraries: modules, or
with a colon functions of modules that it calls. A request is a message of JSON (arguments of
Python, working folder, environment, what it takes for the path of Python) with the three standard
files. The answers are the fork's number and, when the fork has ended, its status. Who asked may end
sooner: then the fork is killed. The requests come from ``forks.py``.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
import warnings
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

OURS = ("coupled_adam_bench", "coupled_adam", "embedding_geometry")
LONGEST_REQUEST = 1 << 20


def run(arguments: list[str]) -> None:
    """Do what Python does with these arguments: ``-W error`` if it is there, then ``-m MODULE`` or
    ``-c PROGRAM``."""
    if arguments[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        arguments = arguments[2:]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        if "PYTHONSAFEPATH" not in os.environ:
            sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        assert arguments[0] == "-c", arguments
        sys.argv = ["-c", *arguments[2:]]
        if "PYTHONSAFEPATH" not in os.environ:
            sys.path.insert(0, "")
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), vars(main))


def status_of(arguments: list[str]) -> int:
    """Run a command line to its end, and return the status with which Python would end."""
    try:
        run(arguments)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def forget_other_code() -> None:
    """Forget our packages where the path of modules now has others, as a test that changes their
    files asks for."""
    for package in OURS:
        ours, found = sys.modules.get(package), PathFinder.find_spec(package)
        if ours is not None and (found is None or found.origin != ours.__file__):
            for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
                del sys.modules[name]


def become(request: dict[str, Any], files: list[int]) -> None:
    """Be the process of a request, first of a group of its own, and end."""
    os.setsid()
    signal.signal(
        signal.SIGHUP, signal.SIG_DFL
    )  # the tests may run under nohup, which has it ignored
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.executable = request["python"] or sys.executable
    forget_other_code()
    status = status_of(request["arguments"])
    # As Python ends, but without the clearing of its modules: of so many, that takes half a second.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def serve(address: str, owner: int) -> None:
    """Fork for each request until the owner has ended."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server,
        selectors.DefaultSelector() as selector,
    ):
        server.bind(address)
        server.listen(100)
        if os.fork():  # whoever started this waits for it: it can be asked now
            os._exit(0)
        for number in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        selector.register(server, selectors.EVENT_READ)
        selector.register(os.pidfd_open(owner), selectors.EVENT_READ, "owner")
        running: set[int] = set()
        while True:
            for key, _ in selector.select():
                match key.data:
                    case "owner":
                        return
                    case "asker", child:  # who says nothing more but its end
                        if child in running:
                            selector.unregister(key.fileobj)
                            os.kill(child, signal.SIGKILL)
                    case "fork", child, connection:
                        running.remove(child)
                        selector.unregister(key.fileobj)
                        os.close(key.fd)
                        with contextlib.suppress(KeyError):
                            selector.unregister(connection)
                        tell(connection, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                        connection.close()
                    case _:
                        connection, child = accept(server)
                        running.add(child)
                        selector.register(
                            os.pidfd_open(child), selectors.EVENT_READ, ("fork", child, connection)
                        )
                        selector.register(connection, selectors.EVENT_READ, ("asker", child))


def accept(server: socket.socket) -> tuple[socket.socket, int]:
    """Fork for a request; return where it came from, which is told the fork's number, and that
    number."""
    connection, _ = server.accept()
    request, files, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, 3)
    if (child := os.fork()) == 0:
        server.close()
        connection.close()
        become(json.loads(request), files)
    for file in files:
        os.close(file)
    tell(connection, child)
    return connection, child


def tell(connection: socket.socket, number: int) -> None:
    """Answer, unless nobody listens any more."""
    with contextlib.suppress(OSError):
        connection.send(str(number).encode())


for library in sys.argv[3:]:
    module, _, function = library.partition(":")
    loaded = import_module(module)
    if function:
        getattr(loaded, function)()
gc.freeze()  # else the end of each fork would look at all of it
serve(sys.argv[1], int(sys.argv[2]))
