"""The import into MLflow beside the jobs: its pauses, its end, and servers that hang or refuse all
the time."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from forks import Fork

from coupled_adam_bench.cli import main
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.store.paths import NOT_IMPORTED, not_imported

pytest.importorskip("mlflow")
T0 = 1_700_000_000.25


@pytest.fixture
def folder(tmp_path, tiny_plan, whole):
    """A working folder with a study that has begun to train, and a database without runs."""
    write_sealed(tmp_path / "results/tiny/plan.json", tiny_plan.to_json())
    for cell in tiny_plan.cells.values():
        run = tmp_path / "results/runs" / cell.id
        run.mkdir(parents=True)
        (run / "history.jsonl").write_text(json.dumps({"step": 5, "loss": 3.0, "time": T0}) + "\n")
    shutil.copy(whole, tmp_path / "results/mlflow.db")
    return tmp_path


@contextmanager
def following(folder):
    """Run the import beside the jobs, with short pauses."""
    follow_study = (
        "importing._PAUSE = 0; importing.follow_study(Path('results/tiny/plan.json'), 0.2)"
    )
    command = (
        "from pathlib import Path; from coupled_adam_bench.tracking import importing;"
        f" {follow_study}"
    )
    reading, writing = os.pipe()
    process = Fork("pipeline", ["-c", command], folder, dict(os.environ), given=reading)
    os.close(reading)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        os.close(writing)


def wait_for(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.3)


def steps_in_mlflow(folder) -> set[int]:
    """Return the last imported step of each run."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/results/mlflow.db")
    experiment = client.get_experiment_by_name("tiny")
    runs = (
        client.search_runs([experiment.experiment_id], "tags.optimizer != ''") if experiment else []
    )
    # A run has no points yet where the import was seen between making it and filling it.
    steps = {
        max((p.step for p in client.get_metric_history(run.info.run_id, "train/loss")), default=0)
        for run in runs
    }
    return steps if len(runs) == 2 else set()


def test_training_is_seen_while_it_goes_on(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with following(folder) as process:
        wait_for(lambda: steps_in_mlflow(folder) == {5})
        for history in folder.glob("results/runs/*/history.jsonl"):
            with history.open("a") as file:
                file.write(json.dumps({"step": 10, "loss": 2.5, "time": T0 + 5}) + "\n")
        wait_for(lambda: steps_in_mlflow(folder) == {10})
        assert process.poll() is None
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19


@pytest.mark.fault(
    "tracking",
    "The workflow ends in any way, SIGKILL included, while the import beside its jobs runs or"
    " hangs.",
    "The import ends with it, and what it had not written comes with the next one.",
)
def test_the_process_ends_with_the_one_that_holds_its_input(folder):
    starter = (
        "import subprocess, sys, time\ncommand = [sys.executable, '-m', 'coupled_adam_bench',"
        " 'follow', '--plan', 'results/tiny/plan.json']\nchild = subprocess.Popen([*command,"
        " '--seconds', '600'], stdin=subprocess.PIPE, start_new_session=True)\nprint(child.pid,"
        " flush=True)\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", starter], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    child = int(parent.stdout.readline())
    wait_for(lambda: os.getpriority(os.PRIO_PROCESS, child) == 19)
    os.kill(child, 0)
    parent.kill()
    parent.communicate()

    def is_gone():
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return True
        return Path(f"/proc/{child}/stat").read_text().split()[2] == "Z"  # nobody waits for it here

    wait_for(is_gone)


@contextmanager
def hanging():
    """Yield the address of a server that takes connections and never answers, as long as anybody
    asks."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = []

        def accept():
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        for connection in taken:
            connection.close()


@contextmanager
def refusing():
    """Yield an address at which nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{unused.getsockname()[1]}"


@pytest.mark.fault(
    "tracking",
    "The MLflow server hangs or refuses connections for the whole run.",
    "The last import notes it and the study ends well; a later import has everything, and twice"
    " gives the same.",
)
@pytest.mark.parametrize("server", [hanging, refusing])
def test_a_server_that_is_away_for_the_whole_run(server, folder, monkeypatch):
    monkeypatch.chdir(folder)
    track = ["track", "--plan", "results/tiny/plan.json", "--out", "results/tiny/mlflow.json"]
    with server() as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        with following(folder) as process:
            wait_for((folder / "results/.mlflow.lock").exists)  # the import has begun, and may hang
            start = time.monotonic()
            assert main([*track, "--may-wait"]) == 0
            assert time.monotonic() - start < 60
            assert process.poll() is None
        assert re.search("timed out|refused", not_imported(folder / "results/tiny"))
        assert main(track) == 2
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    for created, unchanged in ((2, 0), (0, 2)):
        assert main([*track, "--may-wait"]) == 0
        summary = json.loads((folder / "results/tiny/mlflow.json").read_text())
        assert (summary["created"], summary["unchanged"]) == (created, unchanged)
        assert NOT_IMPORTED not in summary
    assert not_imported(folder / "results/tiny") is None
    assert steps_in_mlflow(folder) == {5}
