"""A client of MLflow that gives up within seconds and prints nothing."""

import contextlib
import os
import socket
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from coupled_adam_bench.machine.environ import environment
from coupled_adam_bench.tracking.uri import DATABASE_SERVERS, Destination

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

Answer = TypeVar("Answer")
_SECONDS = 5  # for each step of the first answer of a server, and half of what the whole may take
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # 7, the default, take minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}


def mlflow_settings(place: Destination) -> "contextlib.AbstractContextManager[None]":
    """Set what MLflow reads from the environment, for the time of an import."""
    settings = {name: os.environ.get(name, value) for name, value in _DEFAULTS.items()}  # the user's stay
    # Otherwise MLflow prints a line for each run, with the server's password if the URI has one.
    settings["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    if place.login is not None:  # not in the URI, where only Latin letters would arrive
        settings["MLFLOW_TRACKING_USERNAME"], settings["MLFLOW_TRACKING_PASSWORD"] = place.login
    if place.database is not None:
        # A connection that is kept open would go on with a file that was renamed.
        settings["MLFLOW_SQLALCHEMYSTORE_POOLCLASS"] = "NullPool"
    return environment(settings)


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

    with environment({"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": str(_SECONDS)}):
        Thread(target=wait, daemon=True).start()
        return future.result(timeout=2 * _SECONDS)


def open_client(place: Destination) -> "MlflowClient":
    """Return a client of the place; a database server is asked whether it answers."""
    from mlflow.tracking import MlflowClient

    if place.uri.partition(":")[0].partition("+")[0] in DATABASE_SERVERS:
        first_answer(place, lambda: _try_database_server(place))
    return MlflowClient(tracking_uri=place.uri)


def _try_database_server(place: Destination) -> None:
    """Connect once: MLflow would try ten times, which takes two minutes."""
    import sqlalchemy

    url = sqlalchemy.make_url(place.uri)
    if url.host:
        port = url.port or DATABASE_SERVERS[url.get_backend_name()]
        socket.create_connection((url.host, port), _SECONDS).close()
    engine = sqlalchemy.create_engine(url)
    try:
        engine.connect().close()
    finally:
        engine.dispose()
