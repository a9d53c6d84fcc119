"""Which tracking URIs are taken, what is said of others and of servers that fail, and that no secret is ever shown."""

import base64
import contextlib
import http.server
import logging
import re
import socket
import threading
import time
import warnings
from functools import cache
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from coupled_adam_bench.tracking.importing import import_study
from coupled_adam_bench.tracking.uri import TrackingError, destination, errors_as_sentences

pytest.importorskip("mlflow")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)


def shows_no_other(error: Exception) -> bool:
    """Tell whether a traceback of this error is without those of the libraries."""
    return error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)


@pytest.mark.fault(
    "tracking",
    "MLFLOW_TRACKING_URI is of an unknown kind, blank, a path, without host or driver, or mistyped",
    "a sentence names MLFLOW_TRACKING_URI, what is allowed and how to do without",
)
@pytest.mark.parametrize(
    "uri",
    [
        "foo://x",
        " ",
        " http://127.0.0.1:5000",
        "http://127.0.0.1:5000\n",
        "http://",
        "http:///path",
        "http:/x",
        "http://[::1",
        "http://host:port",
        "http://host:99999",
        "http://a b",
        "localhost:5000",
        "127.0.0.1:5000",
        "/some/path",
        "results/mlflow.db",
        "file:///some/path",
        "mlruns",
        "sqlite:relative",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite://results/mlflow.db",
        "sqlite:///x.db?mode=ro",
        "sqlite+nothing:///x.db",
        "postgres://host/name",
        "postgresql://",
        "postgresql://127.0.0.1:1/name",
        "postgresql+nothing:///name",
        "postgresql+a+b:///name",
        "mysql://user@host:port/name",
        "mssql+pyodbc:///name",
        "databricks",
        "uc",
        "arn:aws:sagemaker:eu-west-1:123:mlflow",
        "C:\\mlflow.db",
        "\udcff",
        "://",
        "?",
    ],
)
def test_a_uri_that_mlflow_cannot_take(uri, tiny_plan, monkeypatch, capfd):
    import os

    monkeypatch.setattr(
        os, "environ", {**os.environ, "MLFLOW_TRACKING_URI": uri}
    )  # "\udcff" is what a bad byte becomes
    start = time.monotonic()
    with pytest.raises(TrackingError, match=r"^MLFLOW_TRACKING_URI: ") as error:
        import_study(tiny_plan)
    assert time.monotonic() - start < 10
    assert "allowed are a server, http://HOST:PORT" in str(error.value)
    assert "unset it to use results/mlflow.db" in str(error.value)
    assert shows_no_other(error.value)
    assert capfd.readouterr() == ("", "")


def test_an_empty_variable_is_none(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    assert destination().shown == "sqlite:///results/mlflow.db"
    with pytest.raises(TrackingError, match=r"^tracking_uri \(--uri\): it is blank.*; leave it out to use"):
        destination("")


def test_a_database_in_a_folder_with_odd_characters(tiny_plan, tmp_path, monkeypatch):
    folder = tmp_path / "ä b's?#%41@x"
    (folder / "runs").mkdir(parents=True)
    monkeypatch.chdir(folder)
    import_study(tiny_plan)
    assert Path("results/mlflow.db").is_file()
    assert sorted(path.name for path in folder.iterdir()) == ["results", "runs"]


@pytest.mark.fault(
    "tracking",
    "MLFLOW_TRACKING_URI is a database server whose driver is not installed, or that is down",
    "a sentence names the package to install, or says so, at once; MLflow alone would try for two minutes",
)
def test_a_database_server(tiny_plan, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "psycopg2", None)  # as if it were not installed
    start = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        uri = f"postgresql://user:secret@127.0.0.1:{listening.getsockname()[1]}/name"
        with pytest.raises(ValueError, match=r"name: the Python package psycopg2 is missing; install it") as error:
            import_study(tiny_plan, uri)
        assert "secret" not in str(error.value)
    with pytest.raises(ValueError, match=r"MLflow at postgresql://127\.0\.0\.1:\d+/name: Connection refused"):
        import_study(tiny_plan, uri)
    assert time.monotonic() - start < 10


@pytest.mark.fault(
    "tracking", "a database server takes the connection and says nothing", "a sentence says so within seconds"
)
def test_a_database_server_that_hangs(tiny_plan, monkeypatch):
    import sys
    import types

    def connect(*_, **settings):  # what PyMySQL does there: it waits for a greeting without a time limit
        with socket.create_connection((settings["host"], settings["port"])) as connection:
            connection.recv(1)

    driver = types.SimpleNamespace(connect=connect, paramstyle="format", Error=OSError, __version__="1.1")
    monkeypatch.setitem(sys.modules, "pymysql", driver)
    start = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        uri = f"mysql+pymysql://user:secret@127.0.0.1:{listening.getsockname()[1]}/name"
        with pytest.raises(ValueError, match="it did not answer in time"):
            import_study(tiny_plan, uri)
    assert time.monotonic() - start < 15


@pytest.mark.parametrize(
    ("given_uri", "uri", "shown", "login"),
    [
        ("http://u:p@ss:w!rd@h:1/x", "http://h:1/x", "http://h:1/x", ("u", "p@ss:w!rd")),
        ("https://u:p%40ss@h", "https://h", "https://h", ("u", "p@ss")),
        ("https://u:50%@h", "https://h", "https://h", ("u", "50%")),
        ("http://token@[::1]:5", "http://[::1]:5", "http://[::1]:5", ("token", "")),
        ("mssql+x://u:p@p%@h/n?key=k", "mssql+x://u:p%40p%25@h/n?key=k", "mssql+x://h/n", None),
        ("mysql://u:%40%zz@h/n", "mysql://u:%40%25zz@h/n", "mysql://h/n", None),
        ("foo://u:p@ss@h/n", "foo://u:p@ss@h/n", "foo://h/n", None),
    ],
)
def test_the_form_that_mlflow_is_given(given_uri, uri, shown, login):
    place = destination(given_uri)
    assert (place.uri, place.shown, place.login) == (uri, shown, login)
    assert place.secret
    assert "u:p" not in repr(place)


# Users and passwords as people paste them: of any characters, often of those that mean something in a URI.
WORDS = st.text(st.one_of(st.sampled_from("@:/?#[]%\\ +&=;~.,'\"ab1é‖\n"), st.characters(codec="utf-8")), max_size=12)
USERINFO = st.one_of(
    st.builds("{}:{}".format, WORDS, WORDS),
    st.builds(lambda user, password: f"{quote(user, safe='')}:{quote(password, safe='')}", WORDS, WORDS),
    WORDS,
)
KINDS = ("http", "https", "postgresql", "mysql+pymysql", "mssql", "foo", "sqlite", "file", "arn", "u:p")


def said(uri: str) -> str:
    """Return what is said of a URI when a library fails with all its forms in its words, logs and warnings."""
    forms = " ".join((uri, unquote(uri), quote(uri), repr(uri), *uri.split("@"), *unquote(uri).split(":")))
    try:
        place = destination(uri)
        assert not place.secret or place.shown + repr(place)
        with errors_as_sentences(place):
            logging.getLogger("library").critical(forms)
            warnings.warn(forms, stacklevel=1)
            try:
                try:
                    raise ConnectionRefusedError(111, forms)
                except OSError as error:
                    raise RuntimeError(forms) from error
            except RuntimeError:
                raise KeyError(forms)  # noqa: B904
    except TrackingError as error:
        assert shows_no_other(error)
        return str(error)
    raise AssertionError("an error that vanishes")


said_of_example = cache(said)
EXAMPLES = ("user:password", "us/er:password", " :\n", "%00:x")


@pytest.mark.fault(
    "tracking",
    "User and password in MLFLOW_TRACKING_URI have odd characters, such as p@ss:w/rd, raw or percent-encoded.",
    "The import works, and neither is printed or written into a file, not in part.",
)
@given(userinfo=USERINFO, kind=st.sampled_from(KINDS))
@example(userinfo="user:p@ss:w/rd", kind="http")
@example(userinfo="user:p@ss:w/rd", kind="postgresql")
@example(userinfo="A://", kind="http")
@settings(max_examples=600, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_said_does_not_depend_on_user_and_password(userinfo, kind, capfd):
    assume(kind != "sqlite" or not userinfo.startswith("/"))  # sqlite:////:@host is the path of a file
    rest = "@host.example:5000/name"
    assert said(f"{kind}://{userinfo}{rest}") in {said_of_example(f"{kind}://{other}{rest}") for other in EXAMPLES}
    own_kind = re.match(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)", userinfo)  # no part of a user, and shown
    kinds = (*KINDS, own_kind[0]) if own_kind else KINDS
    assert said(f"{userinfo}{rest}") in {
        said_of_example(f"{other}{rest}") for other in ("user:password", "http://u:p", "a://u/")
    } | {said_of_example(f"{kind}://{other}{rest}") for kind in kinds for other in EXAMPLES}
    assert capfd.readouterr() == ("", "")


@given(userinfo=USERINFO)
@example(userinfo="user:p@ss:w/rd")
@example(userinfo="user:p@ss")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_mlflow_says_of_a_server_that_is_down(userinfo, tiny_plan, capfd):
    sentences = []
    for info in (userinfo, *EXAMPLES):
        with pytest.raises(ValueError, match=r"MLFLOW|tracking_uri") as error:
            import_study(tiny_plan, f"http://{info}@127.0.0.1:9/x")
        sentences.append(str(error.value))
    assert sentences[0] in sentences[1:]
    assert "MLflow at http://127.0.0.1:9/x: Connection refused" in sentences[1]
    assert capfd.readouterr() == ("", "")


class Handler(http.server.BaseHTTPRequestHandler):
    """A server that answers every request with what its name in ``ANSWERS`` says."""

    protocol_version = "HTTP/1.0"

    def do_GET(self):
        self.server.authorizations.append(self.headers.get("Authorization"))
        self.server.answer(self)

    def do_POST(self):
        self.do_GET()

    def log_message(self, *_):
        pass


def reply(status: int, body: bytes, kind: str = "text/html", **headers: str):
    def answer(handler: Handler) -> None:
        handler.send_response(status)
        for name, value in ({"Content-Type": kind, "Content-Length": str(len(body))} | headers).items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def raw(data: bytes):
    return lambda handler: handler.wfile.write(data)


def hang(handler: Handler) -> None:
    handler.server.over.wait(30)


def half(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\n{")
    handler.wfile.flush()
    hang(handler)


def drip(handler: Handler) -> None:
    with contextlib.suppress(OSError):
        while not handler.server.over.wait(0.5):
            handler.wfile.write(b"H")


@contextlib.contextmanager
def server(answer):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads = True
        running.answer, running.over, running.authorizations = answer, threading.Event(), []
        running.handle_error = lambda *_: None  # a client that has gone away
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield running
        finally:
            running.over.set()
            running.shutdown()
            thread.join()


JSON = "application/json"
ANSWERS = {
    "a web page": (reply(200, b"<html>Welcome</html>" * 1000), "Welcome"),
    "an empty body": (reply(200, b""), "is no MLflow server"),
    "an empty object": (reply(200, b"{}", JSON), "is no MLflow server"),
    "a list": (reply(200, b"[]", JSON), "not in a valid JSON format"),
    "other JSON": (reply(200, b'{"experiment": 5}', JSON), "MLflow at"),
    "random bytes": (reply(200, bytes(range(256)), JSON), "MLflow at"),
    "no HTTP": (raw(b"SSH-2.0-OpenSSH_9.6\r\n"), "MLflow at"),
    "nothing": (raw(b""), "MLflow at"),
    "a body that is no gzip": (reply(200, b"{}", JSON, Content_Encoding="gzip"), "MLflow at"),
    "a redirect to itself": (reply(302, b"", Location="/"), "MLflow at"),
    "status 403": (reply(403, b"<html>Forbidden</html>"), "HTTP status 403"),
    "status 403 of MLflow": (
        reply(403, b'{"error_code": "PERMISSION_DENIED", "message": "not yours"}', JSON),
        "it answered PERMISSION_DENIED",
    ),
    "status 404": (reply(404, b"<html>Not found</html>"), "HTTP status 404"),
    "status 500": (reply(500, b"<html>Oops</html>"), "HTTP status 500"),
    "status 500 of MLflow": (reply(500, b'{"error_code": 5, "message": {}}', JSON), "HTTP status 500"),
    "status 503": (reply(503, b"", Retry_After="3600"), "HTTP status 503"),
    "no answer": (hang, "did not answer in time"),
    "a byte now and then": (drip, "did not answer in time"),
    "half an answer": (half, "did not answer in time"),
}


@pytest.mark.fault(
    "tracking",
    "the MLflow server answers with an error, garbage, half an answer or not at all",
    "a sentence names the server and what came within seconds, and advises to go on without it",
)
@pytest.mark.parametrize("name", ANSWERS)
def test_a_server_that_fails(name, tiny_plan, monkeypatch, capfd):
    answer, expected = ANSWERS[name]
    with server(answer) as running:
        address = f"http://127.0.0.1:{running.server_port}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        start = time.monotonic()
        with pytest.raises(TrackingError, match=r"^MLFLOW_TRACKING_URI: ") as error:
            import_study(tiny_plan)
        assert time.monotonic() - start < 15
    message = str(error.value)
    assert expected in message
    assert address in message
    assert "unset it to use results/mlflow.db" in message
    assert len(message) < 1000
    assert capfd.readouterr() == ("", "")


def test_a_password_with_odd_characters_arrives(tiny_plan, monkeypatch, capfd):
    for given_info in ("us er:p@ss:w‖rd%", "us%20er:p%40ss%3Aw%E2%80%96rd%25"):
        with server(reply(403, b"<html>Forbidden</html>")) as running:
            monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{given_info}@127.0.0.1:{running.server_port}")
            with pytest.raises(
                ValueError, match="it answered with HTTP status 403 \\(MlflowException, in words that"
            ) as error:
                import_study(tiny_plan)
            assert base64.b64decode(running.authorizations[0].removeprefix("Basic ")) == "us er:p@ss:w‖rd%".encode()
            assert "Forbidden" not in str(error.value)
    assert capfd.readouterr() == ("", "")
