"""Which tracking URIs are taken, what is said of others and of servers that fail, and that no secret is ever shown."""

import base64
import contextlib
import http.server
import socket
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from coupled_adam_bench.tracking.importing import import_study
from coupled_adam_bench.tracking.uri import TrackingError, destination

pytest.importorskip("mlflow")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.fault(
    "tracking",
    "MLFLOW_TRACKING_URI is of an unknown kind, blank, a path, without host or driver, or mistyped",
    "a sentence names MLFLOW_TRACKING_URI, what is allowed and how to do without",
)
@pytest.mark.parametrize(
    "uri",
    [
        "foo://x", " ", "http://127.0.0.1:5000\n", "http://", "http:///", "http:/x", "http://[::1", "http://host:port",
        "http://a b", "localhost:5000", "/some/path", "results/mlflow.db", "file:///some/path", "sqlite:relative",
        "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://results/mlflow.db", "sqlite:///x.db?mode=ro",
        "postgres://host/name", "postgresql+nothing:///name", "mssql+pyodbc:///name", "uc", "C:\\mlflow.db", "://", "?",
    ],
)  # fmt: skip
def test_a_uri_that_mlflow_cannot_take(uri, tiny_plan, monkeypatch, capfd):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    start = time.monotonic()
    with pytest.raises(TrackingError, match=r"^MLFLOW_TRACKING_URI: ") as error:
        import_study(tiny_plan)
    assert time.monotonic() - start < 10
    assert "allowed are a server, http://HOST:PORT" in str(error.value)
    assert "unset it to use results/mlflow.db" in str(error.value)
    assert capfd.readouterr() == ("", "")


def test_a_database_in_a_folder_with_odd_characters(tiny_plan, tmp_path, monkeypatch):
    folder = tmp_path / "ä b's?#%41@x"
    (folder / "runs").mkdir(parents=True)
    monkeypatch.chdir(folder)
    import_study(tiny_plan)
    assert Path("results/mlflow.db").is_file()
    assert sorted(path.name for path in folder.iterdir()) == ["results", "runs"]


@pytest.mark.fault(
    "tracking",
    "MLFLOW_TRACKING_URI is a database server whose driver is not installed",
    "a sentence names the package to install, at once; MLflow alone would try for two minutes",
)
def test_a_database_server_without_its_driver(tiny_plan, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg2", None)  # as if it were not installed
    start = time.monotonic()
    with pytest.raises(ValueError, match=r"the Python package psycopg2 is missing; install it") as error:
        import_study(tiny_plan, "postgresql://user:secret@127.0.0.1:1/name")
    assert time.monotonic() - start < 10
    assert "secret" not in str(error.value)


# Users and passwords as people paste them: of any characters, often of those that mean something in a URI.
WORDS = st.text(st.one_of(st.sampled_from("@:/?#[]%\\ +&=;~.,'\"ab1é‖\n"), st.characters(codec="utf-8")), max_size=12)


@pytest.mark.fault(
    "tracking",
    "User and password in MLFLOW_TRACKING_URI have odd characters, such as p@ss:w/rd, raw or percent-encoded.",
    "The import works, and neither is printed or written into a file, not in part.",
)
@given(user=WORDS, kind=st.sampled_from(["http", "https", "postgresql", "mysql+pymysql", "foo"]), encoded=st.booleans())
@example(user="p@ss:w/rd", kind="http", encoded=False)
@example(user="p@ss:w/rd", kind="postgresql", encoded=True)
@settings(max_examples=300)
def test_no_password_is_shown(user, kind, encoded):
    userinfo = f"user:Secret{quote(user, safe='') if encoded else user}"
    uri = f"{kind}://{userinfo}@host.example:5000/name"
    try:
        said = repr(destination(uri))
    except TrackingError as error:
        said = str(error)
    assert "Secret" not in said
    assert userinfo not in said
    assert f"{kind}://host.example:5000/name" in said


@given(user=WORDS)
@example(user="p@ss:w/rd")
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_mlflow_says_of_a_server_that_is_down(user, tiny_plan, capfd):
    with pytest.raises(TrackingError) as error:
        import_study(tiny_plan, f"http://user:Secret{user}@127.0.0.1:9/x")
    assert "Secret" not in str(error.value)
    assert "http://127.0.0.1:9/x" in str(error.value)
    assert error.value.__context__ is None or error.value.__suppress_context__
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


def reply(status: int, body: bytes, kind: str = "text/html"):
    def answer(handler: Handler) -> None:
        handler.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def hang(handler: Handler) -> None:
    handler.server.over.wait(30)


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


ANSWERS = {
    "a web page": (reply(200, b"<html>Welcome</html>" * 1000), "Expecting value|Welcome"),
    "an empty object": (reply(200, b"{}", "application/json"), "is no MLflow server"),
    "no HTTP": (lambda handler: handler.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n"), "MLflow at"),
    "status 403": (reply(403, b"<html>Forbidden</html>"), "403"),
    "status 500": (reply(500, b"<html>Oops</html>"), "500"),
    "no answer": (hang, "did not answer in time"),
    "a byte now and then": (drip, "did not answer in time"),
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
        with pytest.raises(TrackingError, match=f"(?s)^MLFLOW_TRACKING_URI: .*({expected})") as error:
            import_study(tiny_plan)
        assert time.monotonic() - start < 15
    message = str(error.value)
    assert address in message
    assert "unset it to use results/mlflow.db" in message
    assert len(message) < 1000
    assert capfd.readouterr() == ("", "")


def test_a_database_server_that_hangs(tiny_plan, monkeypatch):
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


def test_a_password_with_odd_characters_arrives(tiny_plan, monkeypatch, capfd):
    for given_info in ("us er:p@ss:w‖rd%", "us%20er:p%40ss%3Aw%E2%80%96rd%25"):
        with server(reply(403, b"<html>Forbidden</html>")) as running:
            monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{given_info}@127.0.0.1:{running.server_port}")
            with pytest.raises(ValueError, match="403"):
                import_study(tiny_plan)
            assert base64.b64decode(running.authorizations[0].removeprefix("Basic ")) == "us er:p@ss:w‖rd%".encode()
    assert capfd.readouterr() == ("", "")
