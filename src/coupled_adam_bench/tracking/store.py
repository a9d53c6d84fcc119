"""Keeps a local MLflow database whole: it is made and upgraded beside its place, and set aside if it is damaged.

MLflow makes its tables in some fifty steps that no transaction holds together: a database whose making or upgrade was
cut off can neither be used nor finished.
"""

import contextlib
import glob
import itertools
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store.files import atomic_path
from coupled_adam_bench.store.locks import folder_lock
from coupled_adam_bench.tracking.uri import REPLACE_IT, DamagedDatabaseError, Destination, TrackingError, surroundings

COMPANIONS = ("-journal", "-wal", "-shm")
"""The suffixes of the files that SQLite keeps beside a database."""
_SECONDS_FOR_A_LOCK = 20


@contextlib.contextmanager
def only_importer(place: Destination, results: Path) -> Iterator[None]:
    """Wait until no other process imports into this database, or from these results into a server; then hold it off."""
    path = results / ".mlflow.lock" if place.database is None else _file(place).with_name(f".{_file(place).name}.lock")
    with contextlib.ExitStack() as stack:
        try:
            waiting = f"waiting for another import into {place.shown}"
            stack.enter_context(folder_lock(path.parent, path.name, waiting))
        except OSError as error:
            raise TrackingError(
                f"{path}: {error.strerror}; an import needs this file to keep others off: mend that, "
                f"or set {place.setting} to another place"
            ) from None
        yield


def make_whole(place: Destination) -> None:
    """Leave a whole database of this MLflow's schema at the place; only its importer may call this.

    A missing one is made. The program's own is upgraded, or set aside and made anew if it is damaged; one that the
    user named may hold other things than ours, so there both raise :class:`TrackingError`.
    """
    database = _file(place)
    for leftover in database.parent.glob(glob.escape(f".{database.name}.") + "*.tmp*"):
        leftover.unlink()  # a process that was killed left it
    if database.exists() and not database.is_file() and not (place.ours and database.is_dir()):
        raise TrackingError(f"{place.setting}: {database} is not a file; name a database file")
    if not database.exists() or (database.is_file() and database.stat().st_size == 0):
        if any(_appended(database, suffix).exists() for suffix in COMPANIONS):
            _set_aside(database, "its file is gone or empty")
        _make(database)
        return
    try:
        _check(place, database)
    except DamagedDatabaseError as error:
        if not place.ours:
            raise TrackingError(f"{place.setting}: {database} is damaged ({error}); {REPLACE_IT}") from None
        make_anew(place, str(error))


def make_anew(place: Destination, reason: str) -> None:
    """Set a damaged database of this program aside and make a new one."""
    assert place.ours
    _set_aside(_file(place), reason)
    _make(_file(place))


def _set_aside(database: Path, reason: str) -> None:
    """Rename a database and the files that belong to it to ``.damaged-1`` or the next free number, and say so."""
    suffixes = ("", *COMPANIONS)
    names = (database.with_name(f"{database.name}.damaged-{number}") for number in itertools.count(1))
    aside = next(name for name in names if not any(_appended(name, suffix).exists() for suffix in suffixes))
    for suffix in reversed(
        suffixes
    ):  # a journal without its database harms nobody, a new one beside an old journal does
        if _appended(database, suffix).exists():
            _appended(database, suffix).rename(_appended(aside, suffix))
    say(f"warning: {database} is damaged ({reason}); it is kept as {aside}, and all is imported into a new one")


def _file(place: Destination) -> Path:
    """Return the file of a database itself, not a link to it: what is renamed and replaced."""
    assert place.database is not None
    return Path(os.path.realpath(place.database)) if place.database.is_symlink() else place.database


def _appended(database: Path, suffix: str) -> Path:
    return database.with_name(database.name + suffix)


def _make(database: Path) -> None:
    """Make an empty MLflow database."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    artifacts = (database.parent / "mlflow-artifacts").resolve().as_uri()
    with atomic_path(database) as temporary:
        SqlAlchemyStore(f"sqlite:///{temporary}", artifacts)


def _check(place: Destination, database: Path) -> None:
    """Raise :class:`DamagedDatabaseError` with a reason, or :class:`TrackingError` for what only the user can mend."""
    from alembic.script import ScriptDirectory
    from mlflow.store.db.utils import _get_alembic_config

    if database.is_dir():
        raise DamagedDatabaseError("it is a folder")
    revision = _revision(place, database)
    script = ScriptDirectory.from_config(_get_alembic_config(""))
    if revision not in {step.revision for step in script.walk_revisions()}:
        raise TrackingError(
            f"{database}: a newer MLflow made it (schema {revision}); install that version, or move the file away and "
            "run again: the results are complete without it, and all are imported again"
        )
    if revision != script.get_current_head():
        if not place.ours:
            raise TrackingError(
                f"{place.setting}: an older MLflow made {database} (schema {revision}); make a copy of it and run "
                f"`mlflow db upgrade {place.shown}`"
            )
        _upgrade(database)
    if missing := _missing_columns(database):
        raise DamagedDatabaseError(f"it has no {missing[0]}")


def _revision(place: Destination, database: Path) -> str:
    """Return the revision of the schema of a database that SQLite finds whole and not locked."""
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=_SECONDS_FOR_A_LOCK)) as connection:
            connection.isolation_level = None
            connection.execute("BEGIN IMMEDIATE")  # fails if it is locked, and plays a journal back
            connection.execute("ROLLBACK")
            (problem,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if problem != "ok":
                raise DamagedDatabaseError(" ".join(problem.split()))
            revisions = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    except sqlite3.Error as error:
        if reason := surroundings(error):
            raise TrackingError(f"{database}: {reason}, or set {place.setting} to another place") from None
        raise DamagedDatabaseError(str(error)) from None
    if len(revisions) != 1:
        raise DamagedDatabaseError(f"it names {len(revisions)} revisions of its schema")
    return str(revisions[0][0])


def _upgrade(database: Path) -> None:
    """Replace a database of an older MLflow by an upgraded copy; one that cannot be upgraded is damaged.

    An older version of this program upgraded in place: killed half way, that left steps that cannot be done again.
    """
    from mlflow.store.db.utils import _upgrade_db, create_sqlalchemy_engine

    with atomic_path(database) as temporary:
        with (
            contextlib.closing(sqlite3.connect(database)) as old,
            contextlib.closing(sqlite3.connect(temporary)) as copy,
        ):
            old.backup(copy)
        try:
            _upgrade_db(create_sqlalchemy_engine(f"sqlite:///{temporary}"))
        except OSError:
            raise
        except Exception as error:
            cause = getattr(error, "orig", error)
            if isinstance(cause, sqlite3.Error) and surroundings(cause):
                raise
            raise DamagedDatabaseError(f"it cannot be upgraded: {' '.join(str(cause).split())}") from None
    say(f"{database} is upgraded to the schema of the MLflow that is installed")


def _missing_columns(database: Path) -> list[str]:
    """Return the columns that MLflow will use and the database lacks."""
    # This module has loaded all tables; MLflow itself would make a missing one as it was in its first version.
    from mlflow.store.db.utils import Base

    with contextlib.closing(sqlite3.connect(database)) as connection:
        return [
            f"column {table.name}.{column.name}"
            for table in Base.metadata.tables.values()
            for there in [{row[1] for row in connection.execute(f'PRAGMA table_xinfo("{table.name}")')}]
            for column in table.columns
            if column.name not in there
        ]
