"""The place that a study is imported to: servers that fail, and our own database under kills and
damage."""

import contextlib
import http.server
import os
import resource
import shutil
import sqlite3
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from forks import python
from waits import wait_until

from coupled_adam_bench.store.locks import folder_lock
from coupled_adam_bench.tracking import place
from coupled_adam_bench.tracking.importing import LOCK, import_study
from coupled_adam_bench.tracking.place import TrackingError, masked, tracking_uri

pytest.importorskip("mlflow")
DATABASE = Path("results/mlflow.db")
SRC = Path(__file__).parents[3] / "src"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(SRC)}
TRACK = [
    "-m",
    "coupled_adam_bench",
    "track",
    "--plan",
    "results/plan.json",
    "--out",
    "results/mlflow.json",
]


pytestmark = pytest.mark.usefixtures("tracked")


def query(sql: str) -> list[tuple]:
    with contextlib.closing(sqlite3.connect(DATABASE)) as connection, connection:
        return connection.execute(sql).fetchall()


def assert_each_is_there_once() -> None:
    assert query("SELECT count(*), count(DISTINCT name) FROM runs") == [
        (3, 3)
    ]  # of two cells and the study
    # Two cells with five rows, each of a loss with two names, and an evaluation.
    assert query("SELECT count(*) FROM metrics") == [(2 * (5 * 2 + 1),)]
    assert query("PRAGMA integrity_check") == [("ok",)]


@pytest.mark.fault(
    "tracking",
    "MLFLOW_TRACKING_URI is a path or a host without its scheme",
    "a sentence names MLFLOW_TRACKING_URI, what is allowed and how to do without, before the"
    " first job",
)
@pytest.mark.parametrize(
    "uri", [" ", "localhost:5000", "/some/path", "results/mlflow.db", "sqlite://"]
)
def test_a_uri_that_is_none(uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(
        ValueError, match=r"^MLFLOW_TRACKING_URI: .*http://HOST:PORT.*; unset it to use results/mlf"
    ):
        tracking_uri()


@pytest.mark.fault(
    "tracking",
    "the MLflow server is down, and its address has a password",
    "neither the password nor its encoded form is printed",
)
@pytest.mark.parametrize("password", ["secret", "p@ss:w/rd", quote("p@ss:w/rd", safe="")])
def test_no_password_is_shown(password, tiny_plan, capfd):
    assert masked("host/?p=p@ss:w/rd", f"postgresql://me:{password}@host/name").count("p@ss") == (
        password == "secret"
    )
    with pytest.raises(TrackingError, match=r"MLflow at http://me:\*\*\*@127.0.0.1:9: ") as error:
        import_study(tiny_plan, f"http://me:{password}@127.0.0.1:9")
    assert password not in str(error.value)
    assert error.value.__suppress_context__
    assert capfd.readouterr() == ("", "")


def test_a_database_server_without_its_driver(tiny_plan, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg2", None)  # as if it were not installed
    with pytest.raises(TrackingError, match="psycopg2"):
        import_study(tiny_plan, "postgresql://user:secret@127.0.0.1:1/name")


class Handler(http.server.BaseHTTPRequestHandler):
    """A server that answers every request with its ``status`` and a web page, or, without one, not
    at all."""

    def do_GET(self):
        if self.server.status is None:
            self.server.over.wait(30)
            return
        self.send_response(self.server.status)
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b"Welcome")

    def log_message(self, *_):
        pass


@pytest.mark.fault(
    "tracking",
    "the MLflow server answers with an error, a web page or not at all",
    "a sentence names the server and what came within seconds; the results are complete without it",
)
@pytest.mark.parametrize("status", [200, 403, None])
def test_a_server_that_fails(status, tiny_plan, monkeypatch, capfd):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads, running.status, running.over = True, status, threading.Event()
        running.handle_error = lambda *_: None  # a client that has gone away
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{running.server_port}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        start = time.monotonic()
        with pytest.raises(
            TrackingError, match=rf"^MLflow at {address}: .*\. The results are complete without it"
        ):
            import_study(tiny_plan)
        assert time.monotonic() - start < 15
        running.over.set()
        running.shutdown()
    assert capfd.readouterr() == ("", "")


def cut() -> None:
    with DATABASE.open("r+b") as file:
        file.truncate(DATABASE.stat().st_size // 2 + 100)


DAMAGES = {
    "cut": cut,
    "no database": lambda: DATABASE.write_text("no database\n" * 1000),
    "of a newer MLflow": lambda: query("UPDATE alembic_version SET version_num = 'ffffffffffff'"),
}


@pytest.mark.fault(
    "tracking",
    "results/mlflow.db is cut, overwritten, or of another MLflow",
    "it is kept as mlflow.db.damaged-1, which is said, and everything is imported into a new"
    " database",
)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_database_is_set_aside(tiny_plan, damage, whole, capfd):
    shutil.copy(whole, DATABASE)
    DAMAGES[damage]()
    capfd.readouterr()
    assert import_study(tiny_plan)["created"] == 2
    (warning,) = capfd.readouterr().err.splitlines()
    assert warning.startswith("warning: results/mlflow.db cannot be read (")
    assert warning.endswith("); it is kept as mlflow.db.damaged-1, and a new one is made")
    assert Path("results/mlflow.db.damaged-1").is_file()
    assert_each_is_there_once()


@pytest.mark.fault(
    "tracking",
    "MLFLOW_TRACKING_URI names a database file that is no database",
    "a sentence says so; a file that the user named is never renamed",
)
def test_a_database_that_the_user_named_is_left_alone(tiny_plan, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mine.db")
    Path("mine.db").write_text("mine\n" * 1000)
    with pytest.raises(TrackingError, match=r"sqlite:///mine\.db: file is not a database"):
        import_study(tiny_plan)
    assert Path("mine.db").read_text() == "mine\n" * 1000


@pytest.mark.fault(
    "tracking",
    "the disk is full while results/mlflow.db is made, or another program holds its lock",
    "a sentence says so, the database is not taken for damaged, and the next import finishes the"
    " work",
)
def test_a_full_disk_and_a_lock(tiny_plan, whole, monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        with pytest.raises(TrackingError, match=r"mlflow\.db: .*(disk I/O error|full|too large)"):
            import_study(tiny_plan)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    shutil.copy(whole, DATABASE)
    connect = sqlite3.connect
    with contextlib.closing(connect(DATABASE)) as other, monkeypatch.context() as patch:
        patch.setattr(
            place.sqlite3, "connect", lambda database, timeout: connect(database, timeout=0.2)
        )
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(TrackingError, match=r"mlflow\.db: database is locked"):
            import_study(tiny_plan)
        other.rollback()
    assert import_study(tiny_plan)["created"] == 2


# Import the study again and again in forked processes that are killed at random moments, then once
# in peace.
KILLER = """
import os, random, signal, sys, time
from pathlib import Path
import mlflow.store.tracking.sqlalchemy_store, mlflow.tracking
from coupled_adam_bench.study.plan import load_plan
from coupled_adam_bench.tracking.importing import import_study

plan, generator = load_plan(Path("results/plan.json")), random.Random(1)
for longest in [2.5] * int(sys.argv[1]) + [0.5] * int(sys.argv[1]):
    child = os.fork()
    if child == 0:
        import_study(plan)
        os._exit(0)
    time.sleep(generator.uniform(0, longest))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
import_study(plan)
"""


@pytest.mark.fault(
    "tracking",
    "an import is killed (SIGKILL) at a random moment, also while results/mlflow.db is being made",
    "a plain import goes on: the database holds each run and each metric once, as after an"
    " undisturbed import",
)
@pytest.mark.parametrize("n_kills", [2, pytest.param(12, marks=pytest.mark.nightly)])
def test_kills(n_kills):
    process = python("pipeline", ["-c", KILLER, str(n_kills)], Path(), ENVIRONMENT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    assert_each_is_there_once()


@pytest.mark.fault(
    "several users",
    "two imports write into one database at once, before it is made",
    "one waits for the other, with a line that says so; both end well and each run is there once",
)
def test_two_importers_at_once():
    files = [Path("first.txt"), Path("second.txt")]
    with folder_lock(Path("results"), LOCK):
        processes = [python("pipeline", TRACK, Path(), ENVIRONMENT, file) for file in files]
        for file in files:  # both come to the lock
            wait_until(lambda file=file: file.exists() and "\n" in file.read_text())
    assert [process.wait(120) for process in processes] == [0, 0]
    assert all(
        file.read_text().startswith("waiting for another import into sqlite:///") for file in files
    )
    assert_each_is_there_once()
