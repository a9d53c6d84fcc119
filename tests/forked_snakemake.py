"""Runs Snakemake's command line in forks of this process, which has imported Snakemake and nothing of this project.

A fork spares the two seconds of Snakemake's imports, which are most of a dry run. Requests come from stdin, a line of
JSON each: the arguments, the working folder, the environment, the file for all that is said, Python code to run first,
and the Python of jobs. The exit status of each goes to stdout.
"""

import gc
import json
import os
import sys
from importlib import import_module
from typing import Any

from snakemake.cli import main

for later in ("smart_open", "snakemake.report.html_reporter"):  # which Snakemake imports in each start
    import_module(later)
gc.freeze()  # else the end of each fork would look at all of it


def run(request: dict[str, Any]) -> None:
    """Become the Snakemake of a request, as a shell would start it."""
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    said = os.open(request["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for source, target in ((nothing, 0), (said, 1), (said, 2)):
        os.dup2(source, target)
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv, sys.executable = ["snakemake", *request["arguments"]], request["python"]  # that of its jobs
    exec(request["first"], {})
    main(request["arguments"])


for line in sys.stdin:
    if (child := os.fork()) == 0:
        run(json.loads(line))
        sys.exit()
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
