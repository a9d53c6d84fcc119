"""Finds the place that runs are imported to, and says MLflow's errors as sentences without user and password."""

import contextlib
import glob
import itertools
import logging
import os
import re
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote

from coupled_adam_bench.machine.process import environment
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import atomic_path

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

ALLOWED = (
    "allowed are a server, http://HOST:PORT or https://HOST, a database server, postgresql://HOST/NAME (or mysql, "
    "or mssql), and a database file, sqlite:///FILE"
)
# A database file, a server, or a name that MLflow and its plugins know.
_TAKEN = r"sqlite(\+\w+)?:///[^?]*[^?/]|((https?|postgresql|mysql|mssql)(\+\w+)?://.*[^/].*|(databricks|uc|arn:)\S*)"
_WORDS_SHOWN = 300  # characters of a library's message, which can hold a whole web page
_SECONDS = 10  # for the first answer of a server
_SECONDS_FOR_A_LOCK = 20
# SQLite's names of the errors that come from a file's surroundings, such as a full disk, and not from its contents.
_SURROUNDINGS = ("BUSY", "LOCKED", "READONLY", "PERM", "CANTOPEN", "IOERR", "FULL")
_COMPANIONS = ("-journal", "-wal", "-shm", "")  # the files of an SQLite database; its own has no suffix
Answer = TypeVar("Answer")


class TrackingError(ValueError):
    """An error that stops an import; its message is a sentence for the user and shows no secret."""


class ServerError(TrackingError):
    """A server does not take an import; a later one brings it up to date."""


@dataclass(frozen=True)
class Destination:
    """A place to import into: a server, or a database in a local file."""

    uri: str = field(repr=False)
    """The tracking URI that MLflow is given: without user and password for an MLflow server."""
    shown: str
    """The tracking URI without user, password and query, for messages."""
    setting: str
    """The name of what the user sets to choose this place."""
    database: Path | None = None
    """The database file, ``None`` for a server."""
    login: tuple[str, str] | None = field(default=None, repr=False)
    """The user and password of an MLflow server."""

    def error(self, problem: str) -> TrackingError:
        """Return the error for a place that cannot be used, with what can be used instead."""
        action = "unset it" if self.setting == "MLFLOW_TRACKING_URI" else "leave it out"
        return TrackingError(f"{self.setting}: {problem}; {ALLOWED}; {action} to use {paths.MLFLOW_DB}")


def destination(tracking_uri: str | None = None) -> Destination:
    """Return the place that ``tracking_uri`` names, or ``MLFLOW_TRACKING_URI`` if it is set and not empty.

    Without both it is ``results/mlflow.db``. A URI that MLflow cannot take raises :class:`TrackingError`.
    """
    setting = "MLFLOW_TRACKING_URI" if tracking_uri is None else "tracking_uri (--uri)"
    uri = (os.environ.get(setting) or f"sqlite:///{paths.MLFLOW_DB}") if tracking_uri is None else tracking_uri
    if uri.startswith("sqlite"):
        database = Path(os.path.realpath(uri.removeprefix("sqlite:///")))
        # Absolute, since MLflow remembers where it opened a URI; but SQLAlchemy takes what follows a ? for a query.
        place = Destination(uri if "?" in str(database) else f"sqlite:///{database}", uri, setting, database)
    else:
        kind, mark, rest = uri.partition("://")
        kind = kind if re.fullmatch(r"[A-Za-z][\w+.-]*", kind) and mark else ""
        user, at, host = (rest if kind else uri).rpartition("@")
        shown = re.split(r"[?#]", f"{kind}://{host}" if kind else host)[0]
        name, _, password = map(unquote, user.partition(":"))
        if kind in ("http", "https"):  # other than Latin letters would not arrive in a URI
            place = Destination(f"{kind}://{host}", shown, setting, login=(name, password) if at else None)
        else:
            place = Destination(uri, shown, setting)
    if not re.fullmatch(_TAKEN, place.shown) or not uri.isprintable() or uri.endswith(":memory:"):
        raise place.error(f"{place.shown!r} (without user and password) is no place that MLflow takes")
    return place


@contextlib.contextmanager
def errors_as_sentences(place: Destination) -> Iterator[None]:
    """Turn every exception of MLflow and of what it uses into a :class:`TrackingError`, and let them log nothing.

    A log line, a warning or a chained exception may hold the URI in any form, so none is passed on.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except TrackingError:
        raise
    except Exception as error:
        problem = place.error(f"MLflow at {place.shown}: {_reason(place, error)}")
        kind = ServerError if place.database is None else TrackingError
        raise kind(f"{problem}. Mend or move it, or choose another. The results are complete without it") from None
    finally:
        logging.disable(disabled)


def _first_cause(error: BaseException) -> BaseException:
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def _reason(place: Destination, error: Exception) -> str:
    """Return what is wrong, in a library's words only where they cannot hold a password."""
    cause = _first_cause(error)
    words = " ".join(str(cause).split())
    if isinstance(cause, ImportError) and cause.name:
        return f"the Python package {cause.name} is missing; install it"
    if isinstance(cause, TimeoutError) or "Timeout" in type(cause).__name__:
        return "it did not answer in time"
    if place.uri not in (place.shown, f"sqlite:///{place.database}"):
        return f"{type(cause).__name__}, in words that may hold the user or the password and are not shown"
    return words if len(words) <= _WORDS_SHOWN else words[:_WORDS_SHOWN] + " ..."


def mlflow_settings(place: Destination) -> "contextlib.AbstractContextManager[None]":
    """Set what MLflow reads from the environment, for the time of an import."""
    defaults = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # 7, the default, take minutes
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    }
    settings = {name: os.environ.get(name, value) for name, value in defaults.items()}  # the user's stay
    # Otherwise MLflow prints a line for each run, with the address of the server.
    settings["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    # A connection that is kept open would go on with a file that was renamed.
    settings["MLFLOW_SQLALCHEMYSTORE_POOLCLASS"] = "NullPool"
    if place.login is not None:
        settings["MLFLOW_TRACKING_USERNAME"], settings["MLFLOW_TRACKING_PASSWORD"] = place.login
    return environment(settings)


def open_client(place: Destination) -> "MlflowClient":
    """Return a client of the place; a database file that is missing is made."""
    from mlflow.tracking import MlflowClient

    if place.database is not None:
        _open_database(place, place.database)
    elif not place.uri.startswith("http") and "://" in place.uri:
        import sqlalchemy

        sqlalchemy.make_url(place.uri).get_dialect().import_dbapi()  # MLflow tries for two minutes without a driver
    # It opens a database server at once.
    return first_answer(place, lambda: MlflowClient(tracking_uri=place.uri))


def _open_database(place: Destination, database: Path) -> None:
    """Make a missing database, and raise what SQLite and MLflow find wrong with one that is there."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    artifacts = (database.parent / "mlflow-artifacts").as_uri()
    for leftover in database.parent.glob(glob.escape(f".{database.name}.") + "*.tmp*"):
        leftover.unlink()  # a process that was killed left it
    if not database.exists() or database.stat().st_size == 0:
        with atomic_path(database) as temporary:  # its making takes seconds, in which nobody must see it
            SqlAlchemyStore(f"sqlite:///{os.path.relpath(temporary)}", artifacts)  # a folder may have a ? in its name
        return
    # MLflow would try to open a damaged one for two minutes.
    with contextlib.closing(sqlite3.connect(database, _SECONDS_FOR_A_LOCK, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")  # fails if it is locked or cannot be written
        connection.execute("ROLLBACK")
        (problem,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if problem != "ok":
        raise sqlite3.DatabaseError(problem)
    SqlAlchemyStore(place.uri, artifacts)


def first_answer(place: Destination, ask: Callable[[], Answer]) -> Answer:
    """Return what ``ask`` returns; ``TimeoutError`` if a server, asked for the first time, takes more than seconds.

    Neither MLflow nor the drivers of databases have a time limit for an answer that comes byte by byte or hangs after
    its beginning: that is why a thread waits for it.
    """
    if place.database is not None:
        return ask()
    future: Future[Answer] = Future()

    def wait() -> None:
        try:
            future.set_result(ask())
        except Exception as error:
            future.set_exception(error)

    with environment({"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": str(_SECONDS // 2)}):
        Thread(target=wait, daemon=True).start()
        return future.result(timeout=_SECONDS)


def set_aside(place: Destination, error: Exception) -> bool:
    """Rename the program's own database if this error says that it cannot be read, and tell whether it was renamed."""
    from alembic.util import CommandError
    from mlflow.exceptions import MlflowException

    cause = _first_cause(error)
    if isinstance(cause, sqlite3.Error):
        name = str(getattr(cause, "sqlite_errorname", "")).removeprefix("SQLITE_").partition("_")[0]
        unreadable = name not in _SURROUNDINGS
    else:  # another MLflow made it
        unreadable = isinstance(cause, CommandError) or (isinstance(cause, MlflowException) and "schema" in str(cause))
    if not unreadable or place.database is None or place.database != Path(os.path.realpath(paths.MLFLOW_DB)):
        return False  # a file that the user named is the user's
    names = (f"{place.database}.unreadable-{number}" for number in itertools.count(1))
    aside = next(name for name in names if not any(Path(name + suffix).exists() for suffix in _COMPANIONS))
    for suffix in _COMPANIONS:  # a new database beside an old journal would be damaged
        with contextlib.suppress(FileNotFoundError):
            Path(f"{place.database}{suffix}").rename(aside + suffix)
    say(
        f"warning: {place.shown} cannot be read ({_reason(place, error)}); it is kept as {aside}, and all is imported "
        "into a new one"
    )
    return True
