"""When a study is copied into MLflow, while it trains and at its end, and what is told of it.

Nothing here imports MLflow before it is time, and no fault of MLflow stops a study.
"""

import os
import re
import select
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from coupled_adam_bench.store.files import read_json, write_json
from coupled_adam_bench.store.runs import RESULTS
from coupled_adam_bench.study.plan import Plan

PAUSE_SECONDS = 60
DATABASE = RESULTS / "mlflow.db"


def address() -> str:
    """Return where MLflow keeps its runs: a server, or our own database."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{DATABASE}"


def _public(text: str) -> str:
    """Return a text without the user and the password of an address, which no file may have."""
    return re.sub(r"//[^/\s]*@", "//", text)


def _copy(plan: Plan) -> dict[str, str]:
    """Copy what is new; return the record of it, which names an error instead of raising it."""
    # A server that is away is told in a minute, and nobody else is told anything.
    for name, value in (
        ("MLFLOW_DISABLE_TELEMETRY", "true"),
        ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2"),
        ("MLFLOW_HTTP_REQUEST_TIMEOUT", "20"),
    ):
        os.environ.setdefault(name, value)
    record = {"uri": _public(address())}
    try:
        from coupled_adam_bench.tracking.mlflow import import_study

        with FileLock(RESULTS / "mlflow.lock"):
            return record | {"experiment": import_study(plan, address())}
    except Exception as error:  # of many types: of MLflow, its server, its database, the disk
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
        return record | {"error": _public(said)}


def copy_study(plan: Plan, record: Path) -> None:
    """Copy a study; the file ``record`` says where it is, or what went wrong."""
    write_json(record, _copy(plan))


def is_copied(record: Path) -> bool:
    """Tell whether a study is where ``address`` says, by its record; a failed copy is none."""
    if not record.exists():
        return False
    found = read_json(record)
    return (
        "error" not in found
        and found["uri"] == _public(address())
        and (found["uri"] != f"sqlite:///{DATABASE}" or DATABASE.exists())
    )


def told(record: Path) -> str:
    """Return the line that says how to see a study in MLflow, or why one cannot."""
    found = read_json(record)
    if "error" in found:
        return f"MLflow: not copied ({found['error']}); the next start tries again"
    runs = f"#/experiments/{found['experiment']}/runs"
    if found["uri"].startswith("http"):
        return f"MLflow: {found['uri']}/{runs}"
    return (
        f"MLflow: mlflow ui --backend-store-uri {found['uri']}, then http://127.0.0.1:5000/{runs}"
    )


def follow(plan: Plan) -> None:
    """Copy a study again and again, until standard input ends or MLflow has an error."""
    while not select.select([sys.stdin], [], [], PAUSE_SECONDS)[0]:
        record = _copy(plan)
        if "error" in record:
            print(record["error"], flush=True)
            return


def start_following(plan_file: Path, log: Path) -> "subprocess.Popen[bytes]":
    """Start a process that follows a study for as long as this one lives and keeps what is
    returned, since the process reads a pipe that ends with it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "coupled_adam_bench", "track", "--plan", str(plan_file)]
    with log.open("w") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
