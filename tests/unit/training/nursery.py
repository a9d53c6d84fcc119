"""Starts commands of the package as forks of one process that has torch imported: a start takes milliseconds.

Reads a JSON object a line ({"start": {...}} or {"wait": pid, "block": bool}) and answers each with one.
"""

import json
import os
import signal
import sys
import warnings

import torch

import coupled_adam_bench.training.loop  # noqa: F401
from coupled_adam_bench.cli import main


def start(argv: list[str], cwd: str, env: dict[str, str], log: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.chdir(cwd)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup, which has it ignored
    os.environ.update(env)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    status = 1
    try:
        warnings.simplefilter("error")
        status = main(argv)
    finally:
        sys.stderr.flush()
        os._exit(status)


# Loads torch's compiler, as the first cell of a training does: a second of work that the forks need not repeat.
torch.use_deterministic_algorithms(False)

for line in sys.stdin:
    command = json.loads(line)
    if "start" in command:
        answer = start(**command["start"])
    else:
        pid, status = os.waitpid(command["wait"], 0 if command["block"] else os.WNOHANG)
        answer = os.waitstatus_to_exitcode(status) if pid else None
    print(json.dumps(answer), flush=True)
