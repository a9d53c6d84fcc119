"""Faults of what surrounds a study: its file is edited, files come late, others share its
results."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from finished import SNAKEMAKE, outputs, read, small, write
from starts import finish

NIGHTLY = pytest.mark.nightly
PRELOADS = Path(__file__).parents[1] / "preloads"


# ---- the study is edited ----


@pytest.mark.fault(
    "cluster",
    "a study is edited while a job of it waits in the queue",
    "the job does the work that it was sent for, by the plan of its run",
)
def test_a_study_that_is_edited_while_a_job_waits(copy):
    evaluations = set(copy.glob("results/runs/*/evaluations/embeddings-*.json"))
    for path in (*evaluations, copy / "results/tiny/evaluation/batch-000.embeddings.done"):
        path.unlink()
    settings = read(copy)
    settings["grid"][0]["seeds"] = [1, 3]
    settings["execution"]["evaluation_cells_per_job"] = 2
    write(copy, settings)
    job = "--mode remote --target-jobs embeddings:batch=batch-000 --nolock --force --no-hooks"
    said = finish(copy, *job.split(), "--allowed-rules", "embeddings", "--printshellcmds")
    assert set(copy.glob("results/runs/*/evaluations/embeddings-*.json")) == evaluations, said


# ---- what the shell has ----


@pytest.mark.fault(
    "settings",
    "a notebook's kernel starts Snakemake, with the backend of its figures and the names of a"
    " launcher",
    "one line says what is cleared, the jobs do not have it, and the report is the same",
)
def test_the_environment_of_a_notebook(copy, finished):
    foreign = {
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "JPY_SESSION_NAME": "a.ipynb",
        "RANK": "0",
    }
    (copy / "results/tiny/manifest.json").unlink()
    # A whole start: the processes that the other tests fork have imported matplotlib before.
    command = [*SNAKEMAKE, "report", "--cores", "1", "--configfile", "study.yaml"]
    result = subprocess.run(
        command,
        cwd=copy,
        env=os.environ | foreign,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout
    said = (
        "cleared from the environment of this run: MPLBACKEND (how matplotlib draws); RANK (which"
    )
    assert result.stdout.count(said) == 1
    assert outputs(copy) == outputs(finished)
    assert not [log for log in copy.glob("results/tiny/logs/*.log") if "cleared" in log.read_text()]


# ---- what the machines do ----


@pytest.fixture(scope="session")
def preload(tmp_path_factory) -> Callable[[str], dict[str, str]]:
    """Return a function that compiles a file of ``preloads`` and returns the variables that load it
    into processes."""

    def preload(name: str) -> dict[str, str]:
        library = tmp_path_factory.mktemp("preloads") / f"{name}.so"
        source = PRELOADS / f"{name}.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        return {"LD_PRELOAD": str(library)}

    if shutil.which("cc") is None:
        if os.environ.get("CAB_REQUIRE_TOOLS") == "1":
            pytest.fail("no C compiler is installed, and CAB_REQUIRE_TOOLS=1")
        pytest.skip("no C compiler (Debian: gcc)")
    return preload


@NIGHTLY
@pytest.mark.fault(
    "cluster",
    "a shared file system shows files late",
    "jobs wait for them as long as Snakemake does (`--latency-wait`); the tables are the same",
)
def test_files_that_come_late(finished, preload, tmp_path, tiny_study, monkeypatch):
    records = (
        "meta.json",
        "run.json",
        *(f"{digit}.json" for digit in "0123456789abcdef"),
    )  # evaluations end in a hash
    late = ":".join([".done=3", *(f"{name}=30" for name in records)])
    for name, value in (preload("late_files") | {"CAB_LATE_FILES": late}).items():
        monkeypatch.setenv(name, value)
    write(tmp_path, small(tiny_study()))
    finish(tmp_path, "tables", "--latency-wait", "60")
    assert outputs(tmp_path) == outputs(finished)


# ---- other users ----

# Root without its rights over the files of others: a user of the group that files belong to, and
# not their owner.
AS_ANOTHER_USER = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search,-fowner"]
NEEDS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="root alone can act as another user",
)


def start_as_another_user(
    folder: Path, *arguments: str, umask: int = 0o002
) -> subprocess.CompletedProcess[str]:
    command = [
        *AS_ANOTHER_USER,
        *SNAKEMAKE,
        "results/tiny/results.csv",
        "--configfile",
        "study.yaml",
        *arguments,
    ]
    return subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        umask=umask,
    )


def assert_is_refused(result: subprocess.CompletedProcess[str]) -> None:
    assert result.returncode == 1
    assert re.search(
        r"results/runs/\S+: you may not read this folder\..* `chmod -R g\+rwX results`",
        result.stdout,
    )
    assert "Traceback" not in result.stdout


@NEEDS_ROOT
@pytest.mark.fault(
    "several users",
    "A folder of the results was written by a user whose umask lets nobody else read it.",
    "A sentence names the folder and says what its owner and the users type.",
)
def test_a_folder_that_may_not_be_read(copy):
    run = next(copy.glob("results/runs/*"))
    os.chown(run, 65534, -1)
    run.chmod(0o700)
    assert_is_refused(start_as_another_user(copy, "-n"))


OWN_OPTIMIZER = """
import torch


class Mine(torch.optim.SGD):
    def __init__(self, params, lr, weight_decay=0.0):
        super().__init__(params, lr=lr, weight_decay=weight_decay)
"""


@pytest.mark.fault(
    "settings",
    "the working folder has files with the names of Python's modules, such as `random.py`",
    "no job takes them for Python's; own optimizers and metrics in that folder are found",
)
def test_own_files_with_names_of_python_s_modules(tmp_path, tiny_study):
    needed = ("operator", "keyword", "types", "queue")  # by Python before it is told where to look
    for name in ("random", "statistics", "string", "json", "secrets", "torch", *needed):
        (tmp_path / f"{name}.py").write_text(
            f"raise RuntimeError('this is the user\\'s own {name}')"
        )
    (tmp_path / "own_optimizer.py").write_text(OWN_OPTIMIZER)
    (tmp_path / "own_metric.py").write_text(
        "def measure(embeddings):\n    return float(len(embeddings))\n"
    )
    settings = small(tiny_study())
    own = {"name": "custom", "path": "own_optimizer.Mine", "key": "mine", "label": "Mine"}
    settings["grid"][0] |= {"table": None, "optimizers": [own], "seeds": [1]}
    metric = {"name": "n", "path": "own_metric.measure", "symbol": "n", "higher_is_better": True}
    settings["evaluation"]["metrics"] = [metric]
    settings["execution"] |= {"train_processes": 2, "data_threads": 2, "track_seconds": None}
    write(tmp_path, settings)
    # Whole starts: where Python looks for modules is decided before any of our code.
    stages = [
        f"results/tiny/evaluation/batch-000.{stage}.done" for stage in ("embeddings", "downstream")
    ]
    command = [*SNAKEMAKE, *stages, "--cores", "2", "--configfile", "study.yaml"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr
    assert list(tmp_path.glob("results/runs/*/evaluations/embeddings-*.json"))
    (run,) = tmp_path.glob("results/runs/*/run.json")
    command = [sys.executable, "-m", "coupled_adam_bench", "test-loss", "--cells", run.parent.name]
    command += ["--plan", "results/tiny/plan.json", "--done", "test_loss.done"]
    for name in needed:
        (tmp_path / f"{name}.py").unlink()
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
