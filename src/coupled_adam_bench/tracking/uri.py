"""Reads tracking URIs of MLflow, and turns its errors into sentences that show no secret of a URI."""

import contextlib
import logging
import os
import re
import socket
import sqlite3
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from coupled_adam_bench.store import paths

ALLOWED = (
    "allowed are a server, http://HOST:PORT or https://HOST, a database server, postgresql://HOST/NAME (or mysql, "
    "or mssql), and a database file, sqlite:///FILE"
)
DATABASE_SERVERS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
"""The kinds of database servers that MLflow takes, each with its usual port."""
_WORDS_SHOWN = 300  # characters of a library's message, which can hold a whole web page
# SQLite's names of the errors that come from a file's surroundings, not from its contents.
_SURROUNDINGS = {
    **dict.fromkeys(("BUSY", "LOCKED"), "it is locked by another program; close that program"),
    "READONLY": "it cannot be written; change the permissions of the file and of its folder",
    **dict.fromkeys(("PERM", "CANTOPEN"), "it cannot be opened; change the permissions of the file and of its folder"),
    "IOERR": "it cannot be read or written; look whether the disk is full or failing",
    "FULL": "the disk is full; make room",
}
# The words in which libraries report the status of a server; no part of the URI comes before them.
_STATUS = re.compile(r"API request to endpoint /\S* failed with error code (\d{3}) |too many (\d{3}) error responses$")


REPLACE_IT = (
    "restore it, or move it away and run again: the results are complete without it, and all are imported again"
)


class TrackingError(ValueError):
    """An error that stops an import; its message is a sentence for the user and shows no secret."""


class ServerError(TrackingError):
    """A server does not take an import; a later one brings it up to date."""


class DamagedDatabaseError(TrackingError):
    """The contents of a database file are broken; a new file mends that."""


@dataclass(frozen=True)
class Destination:
    """A place to import into: a server, or a database in a local file."""

    uri: str = field(repr=False)
    """The tracking URI that MLflow is given: without user and password for a server, percent-encoded otherwise."""
    shown: str
    """The tracking URI without user, password and query, for messages."""
    setting: str
    """The name of what the user sets to choose this place."""
    secret: bool = False
    """Whether the URI has a user, a password or a query: then no words of a library are shown."""
    database: Path | None = None
    """The database file, ``None`` for a server."""
    login: tuple[str, str] | None = field(default=None, repr=False)
    """The user and password of an MLflow server."""

    @property
    def ours(self) -> bool:
        """Tell whether this is the database file that only this program makes and writes."""
        return self.database is not None and os.path.realpath(self.database) == os.path.realpath(paths.MLFLOW_DB)


def destination(tracking_uri: str | None = None) -> Destination:
    """Return the place that ``tracking_uri`` names, or ``MLFLOW_TRACKING_URI`` if it is set and not empty.

    Without both it is ``results/mlflow.db``. A URI that MLflow cannot take raises :class:`TrackingError`.
    """
    if tracking_uri is not None:
        return _parsed(tracking_uri, "tracking_uri (--uri)")
    if from_environment := os.environ.get("MLFLOW_TRACKING_URI"):
        return _parsed(from_environment, "MLFLOW_TRACKING_URI")
    return _parsed(f"sqlite:///{paths.MLFLOW_DB}", "MLFLOW_TRACKING_URI")


def _parsed(uri: str, setting: str) -> Destination:
    """Split a URI, without ever showing it: what is wrong in it may be a password."""
    if not uri or uri != uri.strip() or not uri.isprintable():
        raise refusal(setting, "it is blank, begins or ends with a space, or has characters that cannot be printed")
    if re.match(r"sqlite(\+\w*)?:", uri):
        name = uri.removeprefix("sqlite:///")
        if name in ("", ":memory:", uri) or name.endswith("/") or "?" in name:
            raise refusal(setting, "a database file is written sqlite:///FILE, with three slashes and no question mark")
        # Absolute, since MLflow remembers where it opened a URI; but SQLAlchemy takes what follows a ? for a query.
        absolute = str(Path(name).absolute())
        return Destination(f"sqlite:///{name if '?' in absolute else absolute}", uri, setting, database=Path(name))
    if re.fullmatch(r"databricks|databricks-uc|uc|arn:[\w:/.-]+", uri):  # names that MLflow and its plugins know
        return Destination(uri, uri, setting)
    parts = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)", uri)
    if parts is None:
        raise refusal(setting, "it is not a URI with :// in it")
    kind, authority, rest = parts.groups()
    if "@" in rest:  # the user and password end at an @, but at which?
        raise refusal(
            setting,
            "an @ comes after a /, ? or #; write odd characters of user, password and path percent-encoded: "
            "@ is %40, / is %2F, ? is %3F, # is %23",
        )
    user, at, host = authority.rpartition("@")
    family = kind.partition("+")[0]
    if kind == "file":
        raise refusal(setting, "MLflow no longer takes a folder of files")
    if kind in ("http", "https") or family in DATABASE_SERVERS:
        address = re.fullmatch(r"(?:[\w.-]+|\[[\w:.%]+\])(?::(\d{1,5}))?", host)
        if (address is None or int(address[1] or 0) > 65535) and (host or family not in DATABASE_SERVERS):
            raise refusal(setting, "it has no host, or one with a port that is not a number below 65536")
    shown = f"{kind}://{host}{re.split(r'[?#]', rest)[0]}"
    secret = bool(at) or shown != f"{kind}://{host}{rest}"
    if kind in ("http", "https"):
        name, _, password = map(unquote, user.partition(":"))
        if "\0" in name + password:
            raise refusal(setting, "its user or password has a character that cannot be sent")
        return Destination(f"{kind}://{host}{rest}", shown, setting, secret, login=(name, password) if at else None)
    if family in DATABASE_SERVERS:
        user = ":".join(_percent_encoded(part) for part in user.split(":", 1))
    return Destination(f"{kind}://{user}{at}{host}{rest}", shown, setting, secret)


def _percent_encoded(part: str) -> str:
    """Encode what a library could take for the end of a user or a password; what is encoded already stays."""
    return quote(re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", part), safe="%")


def refusal(setting: str, problem: str) -> TrackingError:
    """Return the error for a tracking URI that cannot be used, with what can be used instead."""
    return TrackingError(f"{setting}: {problem}; {ALLOWED}; {_without(setting)}")


def _without(setting: str) -> str:
    action = "unset it" if setting == "MLFLOW_TRACKING_URI" else "leave it out"
    return f"{action} to use {paths.MLFLOW_DB}"


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
        raise _sentence(place, error) from None
    finally:
        logging.disable(disabled)


def _sentence(place: Destination, error: Exception) -> TrackingError:
    reason, is_damage = _reason(error)
    if place.database is not None and is_damage:
        return DamagedDatabaseError(f"{place.database}: the database is damaged ({reason}); {REPLACE_IT}")
    words = " ".join(str(error).split())
    if len(words) > _WORDS_SHOWN:
        words = words[:_WORDS_SHOWN] + " ..."
    if place.secret:
        words = f"{type(error).__name__}, in words that may hold the user or the password and are not shown"
    if place.database is None:
        advice = f"Start or mend it, or choose another: {ALLOWED}; {_without(place.setting)}"
    else:
        advice = f"Run again then, or set {place.setting} to another place"
    what = f"{reason} ({words})" if reason else words
    kind = ServerError if place.database is None else TrackingError
    return kind(f"{place.setting}: MLflow at {place.shown}: {what}.\n{advice}. The results are complete without it")


def _reason(error: BaseException) -> tuple[str, bool]:
    """Return a phrase for what is wrong, empty if unknown, and whether the contents of a database are damaged.

    The phrase is made of error numbers and the like, not of a library's words, which may hold the URI.
    """
    link: BaseException | None = error
    seen: set[int] = set()
    reason = ""
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, sqlite3.Error):
            return surroundings(link) or str(link), _is_damage(link)
        status = _STATUS.match(str(link))
        code = getattr(link, "error_code", "INTERNAL_ERROR")  # MLflow's, which is this one for all that it cannot tell
        if isinstance(link, ImportError) and link.name:
            reason = f"the Python package {link.name} is missing; install it"
        elif isinstance(link, socket.gaierror):
            reason = "its host's name is not known"
        elif isinstance(link, TimeoutError) or "Timeout" in type(link).__name__:
            reason = "it did not answer in time"
        elif isinstance(link, OSError) and link.errno:
            reason = os.strerror(link.errno)
        elif status is not None:
            reason = f"it answered with HTTP status {status[1] or status[2]}"
        elif code != "INTERNAL_ERROR":
            reason = f"it answered {code}"
        link = link.__cause__ or link.__context__
    return reason, False


def _error_name(error: sqlite3.Error) -> str:
    """Return SQLite's own name of an error without what details it, such as ``IOERR``; empty for one of Python's."""
    return str(getattr(error, "sqlite_errorname", "")).removeprefix("SQLITE_").partition("_")[0]


def surroundings(error: sqlite3.Error) -> str:
    """Return what keeps SQLite from using a file, such as a full disk; empty if the file's contents may do so."""
    return _SURROUNDINGS.get(_error_name(error), "")


def _is_damage(error: sqlite3.Error) -> bool:
    """Tell whether only damage can cause an error of a database whose schema was checked before."""
    return _error_name(error) in ("CORRUPT", "NOTADB") or "Could not decode to UTF-8" in str(error)
