"""How long training takes beside an import into MLflow whose server answers, hangs or refuses, and
beside none.

    python benchmarks/tracking_beside.py [--model gpt2-4x256] [--steps 60] [--every 5] [--rounds 3]

Each round trains the same cell once beside each, in another order. The import runs as the workflow
starts it, one every so many seconds, and a line of history comes with each step. On a cluster
training and import are on different machines; here they share one, so this is the worst case.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coupled_adam_bench.store.files import read_json, write_sealed
from coupled_adam_bench.store.paths import run_dir
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study

PLAN = Path("plan.json")
COMMAND = [sys.executable, "-m", "coupled_adam_bench"]


def settings(model: str, steps: int) -> dict[str, Any]:
    """Return a study of one cell of a preset, on a made-up language."""
    split = {"val_fraction": 0.05, "test_fraction": 0.05}
    source = {"kind": "synthetic", "n_words": 4000, "n_tokens": 2_000_000}
    return {
        "study": "beside",
        "data": {
            "name": "words",
            "source": source,
            "tokenizer": "word",
            "vocab_size": 4096,
            "split": split,
        },
        "models": [model],
        "training": {"seq_len": 256, "batch_sequences": 16, "warmup_steps": 0, "precision": "fp32"},
        "grid": [
            {"models": [model], "tokens": [{"steps": steps}], "optimizers": ["adamw"], "seeds": [1]}
        ],
        "evaluation": {"word_similarity": "synthetic", "downstream": {"tasks": "synthetic"}},
        "execution": {"log_every": 1, "checkpoint_every": 100_000},
    }


@contextmanager
def hanging() -> Iterator[str]:
    """Yield the address of a server that takes connections and never answers."""
    taken = []
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:

        def accept() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@contextmanager
def refusing() -> Iterator[str]:
    """Yield an address at which nobody listens."""
    yield "http://127.0.0.1:9"  # the port "discard"


@contextmanager
def database() -> Iterator[str]:
    """Yield a database that takes everything, new each time."""
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{folder}/mlflow.db"


SERVERS = {
    "no import": None,
    "an import into a database": database,
    "a server that hangs": hanging,
    "a server that refuses": refusing,
}


def trained(cell_id: str, uri: str | None, every: float) -> dict[str, float]:
    """Train the cell from its beginning beside an import into ``uri``, and return what it took."""
    shutil.rmtree("results/runs", ignore_errors=True)
    environment = os.environ | ({} if uri is None else {"MLFLOW_TRACKING_URI": uri})
    follower = None
    if uri is not None:
        follow = [*COMMAND, "follow", "--plan", str(PLAN), "--seconds", str(every)]
        with Path("follow.log").open("w") as log:
            follower = subprocess.Popen(
                follow, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment
            )
    start = time.perf_counter()
    train = [*COMMAND, "train", "--plan", str(PLAN), "--cells", cell_id, "--done", "trained.done"]
    with Path("train.log").open("w") as log:
        job = subprocess.Popen(train, stdout=log, stderr=log, env=environment)
        _, status, usage = os.wait4(job.pid, 0)
    assert status == 0, Path("train.log").read_text()
    found = {
        "seconds of the loop": read_json(run_dir(cell_id) / "run.json")["train"]["seconds"],
        "seconds of the job": time.perf_counter() - start,
        "CPU seconds of the job": usage.ru_utime + usage.ru_stime,
    }
    if follower is not None:
        assert follower.poll() is None, Path("follow.log").read_text()
        assert follower.stdin is not None
        follower.stdin.close()
        _, _, usage = os.wait4(follower.pid, 0)
        found["CPU seconds of the import"] = usage.ru_utime + usage.ru_stime
    return found


def main() -> None:
    """Measure, and print the medians with their ratio to training alone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gpt2-4x256")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument(
        "--every", type=float, default=5, help="seconds between imports (the workflow: a minute)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SERVERS}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        plan = make_plan(parse_study(settings(arguments.model, arguments.steps)))
        write_sealed(PLAN, plan.to_json())
        (cell_id,), (data_id,) = plan.cells, plan.data_ids
        subprocess.run(
            [*COMMAND, "prepare", "--plan", str(PLAN), "--data", data_id, "--done", "data.done"],
            check=True,
        )
        for number in range(arguments.rounds):
            names = list(SERVERS)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                server = SERVERS[name]
                if server is None:
                    found[name].append(trained(cell_id, None, arguments.every))
                else:
                    with server() as uri:
                        found[name].append(trained(cell_id, uri, arguments.every))
                print(json.dumps({"beside": name} | found[name][-1]), flush=True)
    alone = {
        key: statistics.median(each[key] for each in found["no import"])
        for key in found["no import"][0]
    }
    for name, measured in found.items():
        medians = {key: statistics.median(each[key] for each in measured) for key in measured[0]}
        ratios = ", ".join(
            f"{key} {value:.2f}" + (f" ({value / alone[key]:.3f})" if key in alone else "")
            for key, value in medians.items()
        )
        print(f"{name}: {ratios}")


if __name__ == "__main__":
    main()
