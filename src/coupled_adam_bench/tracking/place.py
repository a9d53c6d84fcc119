"""The place that a study is imported to: a server or a database. MLflow's errors are sentences
without a password."""

import logging
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlparse

from coupled_adam_bench.machine.process import environment
from coupled_adam_bench.machine.progress import say
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.files import atomic_path, move_aside

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # 7, MLflow's own, take minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    # otherwise a line for each run has the address of the server
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # an open connection would go on with a file that was set aside
    "MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool",
}
"""What MLflow reads from the environment, where the user has not set it."""
_OF_THE_DISK = tuple(
    f"SQLITE_{name}" for name in ("BUSY", "LOCKED", "FULL", "IOERR", "READONLY", "CANTOPEN")
)
"""How SQLite's names of errors begin that come from what is around a file, such as a full disk."""
_PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""The columns of MLflow's tables that hold absolute paths, which nothing else in MLflow can
change."""
FIRST_ANSWER = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}


class TrackingError(ValueError):
    """MLflow does not take an import; a later one brings it up to date."""


def tracking_uri() -> str:
    """Return ``MLFLOW_TRACKING_URI`` if it is set, else that of ``results/mlflow.db``;
    ``ValueError`` if it is none."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{paths.MLFLOW_DB.resolve()}"
    if not re.match(r"[\w+.-]+://.|databricks", uri):
        raise ValueError(
            f"MLFLOW_TRACKING_URI: {uri!r} is no server and no database; allowed are"
            " http://HOST:PORT, https://HOST, postgresql://HOST/NAME, sqlite:///FILE and what else"
            f" MLflow knows; unset it to use {paths.MLFLOW_DB}"
        )
    return uri


def is_database(uri: str) -> bool:
    """Tell whether a URI is that of a database, such as SQLite or PostgreSQL, and not of an MLflow
    server."""
    return "sql" in uri.partition(":")[0]


def local_path(uri: str) -> Path | None:
    """Return the path of a URI of MLflow's that stands for a file here, None for one of a
    server."""
    parts = urlparse(uri)
    return Path(unquote(parts.path)) if parts.scheme in ("", "file") else None


def is_left_behind(location: str, here: Path) -> bool:
    """Tell whether an experiment has a folder like the ones that are made here, but in another
    folder than ``here``."""
    place = local_path(location)
    if place is None or place.parent.name != paths.MLFLOW_ARTIFACTS.name:
        return False
    return paths.is_elsewhere(place.parent, here)


def masked(text: str, uri: str) -> str:
    """Return a text without the password of a URI."""
    if found := re.match(r"[^:]*://[^:@/]*:(.+)@", uri):
        for password in (found[1], unquote(found[1]), quote(found[1], safe="")):
            text = text.replace(password, "***")
    return text


def _first_cause(error: BaseException) -> BaseException:
    while cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        error = cause
    return error


@contextmanager
def mlflow_at(uri: str) -> Iterator[None]:
    """Set up MLflow for an import, and turn each of its exceptions into a :class:`TrackingError`.

    A line of its log or a chained exception may hold the password, so neither is passed on.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with environment({name: os.environ.get(name, value) for name, value in _DEFAULTS.items()}):
            yield
    except TrackingError:
        raise
    except Exception as error:
        cause = _first_cause(error)
        words = " ".join(str(cause).split())[:300] or type(cause).__name__
        raise TrackingError(
            f"MLflow at {masked(uri, uri)}: {masked(words, uri)}. The results are complete without"
            f" it; {_advice(uri, cause)}"
        ) from None
    finally:
        logging.disable(disabled)


def is_own(uri: str) -> bool:
    """Tell whether a URI is that of ``results/mlflow.db``, which this program makes, and may set
    aside."""
    return uri == f"sqlite:///{paths.MLFLOW_DB.resolve()}"


def _is_of_the_disk(cause: BaseException) -> bool:
    name = getattr(cause, "sqlite_errorname", "")
    return isinstance(cause, OSError) or name.startswith(_OF_THE_DISK)


def _advice(uri: str, cause: BaseException) -> str:
    """Return what to do about an error of MLflow's, which depends on whose place it is."""
    if not is_own(uri):
        given = os.environ.get("MLFLOW_TRACKING_URI") == uri
        return (
            f"mend it, or {'unset MLFLOW_TRACKING_URI' if given else 'give no --uri'} to use"
            f" {paths.MLFLOW_DB}"
        )
    if _is_of_the_disk(cause):
        return "mend that, and start again"
    return f"delete {paths.MLFLOW_DB} and start again, which makes it anew from the results"


def _bring_along(database: Path) -> None:
    """Let a database that was moved or copied with its project name the files in its new place, and
    not those in its old one."""
    here = paths.MLFLOW_ARTIFACTS.resolve()
    with closing(sqlite3.connect(database, timeout=20)) as connection, connection:
        found = connection.execute("SELECT artifact_location FROM experiments").fetchall()
        left_behind = {location for (location,) in found if is_left_behind(location, here)}
        for old in {location.rpartition("/")[0] for location in left_behind}:
            for table, column in _PLACES:
                connection.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column},"
                    " 1, ?) = ?",
                    (f"{here.as_uri()}/", len(old) + 2, len(old) + 1, f"{old}/"),
                )
            say(
                f"{paths.MLFLOW_DB} came from {local_path(old)}: its files are looked for in {here}"
                " from now on"
            )


def open_client(uri: str) -> "MlflowClient":
    """Return a client. Our own database, if it cannot be opened, is set aside, but not for a lock
    or a full disk."""
    from mlflow.tracking import MlflowClient

    if is_database(uri):
        import mlflow.store.db.utils

        mlflow.store.db.utils.MAX_RETRY_COUNT = 4  # 10, MLflow's own, take two minutes
    if not is_own(uri):
        return MlflowClient(uri)
    own = paths.MLFLOW_DB.resolve()
    try:
        if own.exists():
            with closing(sqlite3.connect(own, timeout=20)) as connection:
                (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError(found)
            client = MlflowClient(uri)
            _bring_along(own)
            return client
    except Exception as error:
        reason = _first_cause(error)
        if _is_of_the_disk(reason):
            raise
        aside = move_aside(own)
        for suffix in (
            "-journal",
            "-wal",
            "-shm",
        ):
            # A new database beside an old journal would be damaged.
            with suppress(FileNotFoundError):
                Path(f"{own}{suffix}").rename(f"{aside}{suffix}")
        say(
            f"warning: {paths.MLFLOW_DB} cannot be read ({reason}); it is kept as {aside.name}, and"
            " a new one is made"
        )
    with atomic_path(
        own
    ) as temporary:  # its making takes seconds, in which `mlflow ui` must not see it
        MlflowClient(f"sqlite:///{temporary}")
    return MlflowClient(uri)
