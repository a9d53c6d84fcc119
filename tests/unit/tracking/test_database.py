"""The local MLflow database under kills, damage, full disks and other importers, on the real MLflow."""

import contextlib
import json
import os
import resource
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from forks import python

from coupled_adam_bench.store.files import write_json, write_sealed
from coupled_adam_bench.store.locks import folder_lock
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.tracking import uri as tracking_uri
from coupled_adam_bench.tracking.importing import import_study

pytest.importorskip("mlflow")
DATABASE = Path("results/mlflow.db")
SRC = Path(__file__).parents[3] / "src"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(SRC)}
T0 = 1_700_000_000.25


def write_cells(results: Path, plan: Plan, stored: Any, n_rows: int = 5) -> None:
    """Write what a study leaves of its cells, as far as an import reads it."""
    write_sealed(results / "plan.json", plan.to_json())
    files = stored(plan, results / "runs")
    for cell in plan.cells.values():
        folder = results / "runs" / cell.id
        write_json(folder / "cell.json", cell.to_json())
        rows = [{"step": step, "loss": 4 / step, "lr": 0.1, "time": T0 + step} for step in range(1, n_rows + 1)]
        (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        files.run(cell.id, environment={"git_revision": "0123abc"})
        files.evaluation(cell.id, "test_loss", [("test", "loss", 2.5, "nat/token")])


@pytest.fixture
def folder(tmp_path, monkeypatch, tiny_plan, stored) -> Path:
    """A working directory with the files of a study and no database."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    write_cells(Path("results"), tiny_plan, stored)
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """An MLflow database without runs, made once: that takes seconds."""
    database = tmp_path_factory.mktemp("whole") / "mlflow.db"
    tracking_uri.open_client(tracking_uri.destination(f"sqlite:///{database}"))
    return database


def query(database: Path, sql: str) -> list[tuple]:
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        return connection.execute(sql).fetchall()


def contents(database: Path) -> dict[str, list[tuple]]:
    """Return all that an import writes of cells, with the runs' names in place of their random ids."""
    columns = {
        "runs": ("status", "start_time", "end_time", "lifecycle_stage"),
        "metrics": ("key", "value", "timestamp", "step", "is_nan"),
        "latest_metrics": ("key", "value", "timestamp", "step", "is_nan"),
        "params": ("key", "value"),
        "tags": ("key", "value"),
    }
    rows = {}
    for table, names in columns.items():
        listed = ", ".join(f"t.{name}" for name in names)
        sql = f"SELECT r.name, {listed} FROM runs r JOIN {table} t ON r.run_uuid = t.run_uuid ORDER BY r.name, {listed}"
        of_cells = [row for row in query(database, sql) if not row[0].startswith("study ")]
        rows[table] = [row for row in of_cells if row[1] != "mlflow.parentRunId"]
    return rows


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"runs", "plan.json", "mlflow-artifacts"}


TRACK = ["-m", "coupled_adam_bench", "track", "--plan", "results/plan.json", "--out", "results/mlflow.json"]


# Import the study again and again in forked processes that are killed at random moments, then once in peace.
KILLER = """
import os, random, signal, sys, time
from pathlib import Path
import mlflow.store.tracking.sqlalchemy_store, mlflow.tracking
from coupled_adam_bench.study.plan import load_plan
from coupled_adam_bench.tracking.importing import import_study

n_kills, longest, seed = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
plan = load_plan(Path("results/plan.json"))
generator = random.Random(seed)
killed = 0
for _ in range(n_kills):
    child = os.fork()
    if child == 0:
        import_study(plan)
        os._exit(0)
    time.sleep(generator.uniform(0, longest))
    os.kill(child, signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
start = time.monotonic()
print(import_study(plan)["updated"])
print(killed, time.monotonic() - start)
"""


def kill_often(n_kills: int, longest: float, seed: int) -> str:
    arguments = ["-c", KILLER, str(n_kills), str(longest), str(seed)]
    process = python("pipeline", arguments, Path(), ENVIRONMENT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    print(out, err)  # for a look with -s
    return err


@pytest.mark.fault(
    "tracking",
    "the import is killed (SIGKILL) while results/mlflow.db is being made",
    "the next import makes it anew; nothing half made ever has its name, and leftovers are removed",
)
@pytest.mark.parametrize("n_kills", [3, pytest.param(8, marks=pytest.mark.nightly)])
def test_kills_while_the_database_is_made(n_kills, folder):
    assert kill_often(n_kills, longest=2.5, seed=1) == ""
    assert names_in(Path("results")) == {"mlflow.db", ".mlflow.db.lock"}
    assert query(DATABASE, "SELECT count(*) FROM runs") == [(7,)]  # of six cells and the study


@pytest.mark.fault(
    "tracking",
    "an import is killed (SIGKILL) at a random moment",
    "a plain import goes on: the database holds each run and each metric once, as after an undisturbed import",
)
@pytest.mark.parametrize("n_kills", [3, pytest.param(15, marks=pytest.mark.nightly)])
def test_kills_while_runs_are_imported(n_kills, folder, tiny_plan, whole, stored):
    write_cells(Path("results"), tiny_plan, stored, n_rows=900)  # three requests for each run
    shutil.copy(whole, DATABASE)
    import_study(tiny_plan)
    undisturbed = contents(DATABASE)
    assert len(undisturbed["metrics"]) == 6 * (2 * 900 + 1)
    shutil.copy(whole, DATABASE)
    shutil.rmtree("results/mlflow-artifacts")
    assert kill_often(n_kills, longest=1.0, seed=2) == ""
    assert contents(DATABASE) == undisturbed
    artifacts = sorted(path.name for path in Path("results/mlflow-artifacts/tiny").rglob("*") if path.is_file())
    assert artifacts == sorted(["cell.json", "run.json", "test_loss.json"] * 6)


def cut(database: Path) -> None:
    with database.open("r+b") as file:
        file.truncate(database.stat().st_size // 2 + 100)


def other_file(database: Path) -> None:
    database.write_text("no database\n" * 1000)


def version_behind(database: Path) -> None:
    """Leave what a kill leaves in the midst of MLflow's migrations: a step was done and is not noted."""
    query(database, "UPDATE alembic_version SET version_num = '451aebb31d03'")


DAMAGES = {
    "cut": cut,
    "not a database": other_file,
    "killed in a migration": version_behind,
    "of a newer MLflow": lambda database: query(database, "UPDATE alembic_version SET version_num = 'ffffffffffff'"),
    "a table gone": lambda database: query(database, "DROP TABLE metrics"),
    "a column gone": lambda database: query(database, "ALTER TABLE runs DROP COLUMN deleted_time"),
}


@pytest.mark.fault(
    "tracking",
    "results/mlflow.db is cut, overwritten, without a table, of another MLflow, or was left in a migration by a kill",
    "it is kept as mlflow.db.unreadable-1, which is said, and everything is imported into a new database",
)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_database_is_set_aside(folder, tiny_plan, whole, damage, capfd):
    shutil.copy(whole, DATABASE)
    DAMAGES[damage](DATABASE)
    Path(f"{DATABASE}-wal").write_bytes(b"of the old one")
    assert import_study(tiny_plan)["created"] == 6
    warning = capfd.readouterr().err
    assert warning.startswith("warning: sqlite:///results/mlflow.db cannot be read (")
    assert warning.count("\n") == 1
    assert "results/mlflow.db.unreadable-1, and all is imported" in warning
    assert names_in(Path("results")) - {"mlflow.db.unreadable-1-wal"} == {
        "mlflow.db", ".mlflow.db.lock", "mlflow.db.unreadable-1",
    }  # fmt: skip
    assert query(DATABASE, "SELECT count(*) FROM runs") == [(7,)]  # of six cells and the study
    assert query(DATABASE, "PRAGMA integrity_check") == [("ok",)]
    assert import_study(tiny_plan)["unchanged"] == 6


@pytest.mark.fault(
    "tracking",
    "MLFLOW_TRACKING_URI names a database file that is damaged, of another MLflow, or no database at all",
    "a sentence says what to do; a file that the user named is never renamed",
)
@pytest.mark.parametrize("damage", ["cut", "not a database", "of a newer MLflow"])
def test_a_database_that_the_user_named_is_left_alone(folder, tiny_plan, whole, damage, monkeypatch):
    database = folder / "mine.db"
    shutil.copy(whole, database)
    DAMAGES[damage](database)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    before = database.read_bytes() if database.is_file() else None
    with pytest.raises(ValueError, match=r"MLFLOW_TRACKING_URI: .*mine\.db") as error:
        import_study(tiny_plan)
    assert "move it" in str(error.value)
    assert (database.read_bytes() if database.is_file() else None) == before


@pytest.mark.fault(
    "tracking",
    "the disk is full while a database is made or written",
    "a sentence says so; the next import finishes the work",
)
@pytest.mark.parametrize("when", ["made", "written"])
def test_a_full_disk(folder, tiny_plan, whole, when, capfd, stored):
    if when == "written":
        shutil.copy(whole, DATABASE)
        write_cells(Path("results"), tiny_plan, stored, n_rows=900)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (whole.stat().st_size + 50_000 if when == "written" else 50_000, hard)
        )
        with pytest.raises(ValueError, match=r"disk|full|File too large") as error:
            import_study(tiny_plan)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(str(error.value)) < 1000
    assert capfd.readouterr().err == ""
    import_study(tiny_plan)
    assert query(DATABASE, "SELECT count(*) FROM runs") == [(7,)]  # of six cells and the study


@pytest.mark.fault(
    "tracking",
    "another program holds the lock of results/mlflow.db for good",
    "a sentence says so within half a minute; the database is not taken for damaged",
)
def test_a_database_locked_by_another_program(folder, tiny_plan, whole, monkeypatch):
    monkeypatch.setattr(tracking_uri, "_SECONDS_FOR_A_LOCK", 0.2)
    shutil.copy(whole, DATABASE)
    with contextlib.closing(sqlite3.connect(DATABASE)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ValueError, match=r"results/mlflow\.db: database is locked"):
            import_study(tiny_plan)
        other.rollback()
    assert import_study(tiny_plan)["created"] == 6


@pytest.mark.fault(
    "several users",
    "two imports write into one database at once, before it is made",
    "one waits for the other, with a line that says so; both end well and each run is there once",
)
def test_two_importers_at_once(folder):
    files = [Path("first.txt"), Path("second.txt")]
    with folder_lock(Path("results"), ".mlflow.db.lock"):
        processes = [python("pipeline", TRACK, Path(), ENVIRONMENT, file) for file in files]
        deadline = time.monotonic() + 60
        while not all(file.exists() and "\n" in file.read_text() for file in files):  # both have come to the lock
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert [process.wait(120) for process in processes] == [0, 0]
    for file in files:
        (line,) = file.read_text().splitlines()
        assert line.startswith(f"waiting for another import into sqlite:///results/mlflow.db (pid {os.getpid()} on ")
    assert query(DATABASE, "SELECT count(*), count(DISTINCT name) FROM runs") == [(7, 7)]  # of six cells and the study
    assert query(DATABASE, "SELECT count(*) FROM metrics") == [(6 * (2 * 5 + 1),)]
