"""The environment variables around a run: which are cleared, and what the user is told."""

import inspect
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from snakemake.shell import shell

from coupled_adam_bench.machine import device
from coupled_adam_bench.machine.surroundings import LAUNCHER, PAGE, TABLE, clear, describe, line_of

ROOT = Path(__file__).parents[3]
NOTEBOOK = {
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "JPY_PARENT_PID": "1",
    "JPY_SESSION_NAME": "a.ipynb",
    "PYDEVD_USE_FRAME_EVAL": "NO",
    "CLICOLOR_FORCE": "1",
}
KUBERNETES = {
    "RANK": "0",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "job-0",
    "MASTER_PORT": "23456",
    "PET_NNODES": "2",
}
NGC = {
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
    "PYTORCH_VERSION": "2.9",
    "TORCH_CUDA_ARCH_LIST": "9.0",
}
CLUSTER = {
    "OMP_PROC_BIND": "close",
    "OMP_NUM_THREADS": "1",
    "SLURM_JOB_ID": "7",
    "SQUEUE_STATES": "PENDING",
}
YOURS = {
    "HF_HOME": "/cache",
    "HF_HUB_OFFLINE": "1",
    "HF_TOKEN": "t",
    "MLFLOW_TRACKING_URI": "http://host:5000",
    "https_proxy": "http://proxy",
    "CUDA_VISIBLE_DEVICES": "0",
    "PYTHONPATH": "own",
    "OPENBLAS_CORETYPE": "Haswell",
    "TORCHINDUCTOR_CACHE_DIR": "/cache",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "LC_ALL": "de_DE",
    "KMP_DUPLICATE_LIB_OK": "TRUE",
    "SNAKEMAKE_PROFILE": "slurm",
    "MLFLOW_TRACKING_TOKEN": "t",
    "PATH": "/bin",
}


@pytest.mark.parametrize(
    ("given", "cleared"),
    [
        (NOTEBOOK, ["MPLBACKEND"]),
        (KUBERNETES, ["MASTER_ADDR", "MASTER_PORT", "PET_NNODES", "RANK", "WORLD_SIZE"]),
        (NGC, ["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"]),
        (CLUSTER, ["OMP_PROC_BIND", "SQUEUE_STATES"]),
        (YOURS, []),
        (
            {"MLFLOW_RUN_ID": "1", "MLFLOW_EXPERIMENT_NAME": "x"},
            ["MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID"],
        ),
        ({"MKL_DYNAMIC": "TRUE", "MKLROOT": "/opt", "MKL_NUM_THREADS": "4"}, ["MKL_DYNAMIC"]),
        ({"NVIDIA_TF32_OVERRIDE": "1", "CUDA_LAUNCH_BLOCKING": "1"}, ["NVIDIA_TF32_OVERRIDE"]),
        (
            {"DNNL_DEFAULT_FPMATH_MODE": "BF16", "DNNL_MAX_CPU_ISA": "AVX2"},
            ["DNNL_DEFAULT_FPMATH_MODE"],
        ),
        ({"GIT_DIR": "/elsewhere/.git", "GIT_AUTHOR_NAME": "a"}, ["GIT_DIR"]),
        (
            {LAUNCHER: "100"},
            [LAUNCHER],
        ),  # Snakemake asks too, and is never one of the processes of a cell
    ],
)
def test_what_is_not_the_study_s_is_cleared_and_the_rest_is_kept(given, cleared):
    variables = dict(given)
    assert list(clear(variables)) == cleared
    assert variables == {name: value for name, value in given.items() if name not in cleared}


def test_the_user_is_told_what_was_cleared_in_one_sentence():
    said = describe(clear(dict(NOTEBOOK | {"RANK": "0", "WORLD_SIZE": "2"})))
    assert (
        said == "cleared from the environment of this run: MPLBACKEND (how matplotlib draws); RANK,"
        f" WORLD_SIZE (which process of another launcher this would be). See {PAGE}"
    )


COMMAND = "python -m coupled_adam_bench.machine.surroundings"


def explained(*names: str) -> list[str]:
    command = [sys.executable, *COMMAND.split()[1:], *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.splitlines()


def test_the_command_of_the_page_prints_the_whole_table():
    rows = [f"{line.names}: {line.does}: {line.what}" for line in TABLE]
    assert explained() == rows
    assert f"\n{COMMAND} OMP_NUM_THREADS\n" in (ROOT / PAGE).read_text(encoding="utf-8")


def test_the_command_says_what_happens_to_a_variable():
    assert explained("OMP_NUM_THREADS", "OMP_PROC_BIND", "PATH") == [
        "OMP_NUM_THREADS: sets: a job has the study's threads; yours count for a command that you"
        " start yourself",
        "OMP_PROC_BIND: clears: how many threads compute and on which processors",
        "PATH: left alone",
    ]


def test_the_examples_of_the_page_are_treated_as_it_says():
    rows = re.findall(
        r"^\| (clears|sets|heeds|leaves alone) \|.*\| (.*) \|$",
        (ROOT / PAGE).read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(rows) == 4
    for does, examples in rows:
        for name in re.findall(r"`(\w+\*?)`", examples):
            line = line_of(name)
            assert does == ("leaves alone" if line is None else line.does), name


def test_what_the_table_says_is_set_is_set_without_asking():
    ours = [*(ROOT / "src/coupled_adam_bench").rglob("*.py"), *(ROOT / "rules").glob("*.smk")]
    sources = [*ours, Path(inspect.getfile(shell))]  # which sets the threads of a job
    source = "".join(
        path.read_text(encoding="utf-8") for path in sources if path.stem != "surroundings"
    )
    names = [name for line in TABLE if line.does == "sets" for name in line.names.split()]
    assert not [name for name in names if not re.search(rf'\b{name}(=|"\] = |": )', source)]
    jobs = re.search(r"ENVIRONMENT = \((.*?)\n\)", source, re.DOTALL)
    set_for_jobs = [line_of(name) for name in re.findall(r"(\w+)=", jobs[1])]
    assert set_for_jobs and all(line is not None and line.does == "sets" for line in set_for_jobs)


SEEN = """
import locale, os, sys
from coupled_adam_bench import __main__
__main__._look_around()
print(sys.flags.optimize, locale.getpreferredencoding(False), os.environ.get("PYTHONWARNINGS"), sys.argv[1:])
"""


@pytest.mark.fault(
    "cluster",
    "the environment switches off Python's checks, makes an error of each warning, and has a locale"
    " without UTF-8",
    "the process starts anew without these settings, and with UTF-8",
)
def test_a_process_starts_anew_without_what_python_itself_has_read():
    foreign = {
        "PYTHONOPTIMIZE": "2",
        "PYTHONWARNINGS": "error",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "LC_ALL": "C",
    }
    command = [sys.executable, "-c", SEEN, "an argument"]
    done = subprocess.run(
        command, env=os.environ | foreign, capture_output=True, text=True, check=False
    )
    assert done.stdout.lower() == "0 utf-8 none ['an argument']\n", done.stderr
    assert done.stderr.count("cleared from the environment") == 1
    quiet = subprocess.run(
        [sys.executable, "-c", SEEN], capture_output=True, text=True, check=False
    )
    assert (quiet.stdout.lower(), quiet.stderr) == ("0 utf-8 none []\n", "")


CHILD = """
import os, signal, sys, time
from coupled_adam_bench import __main__
__main__._look_around()
if sys.argv[1] == "waits":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(600)
"""
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.fault(
    "training",
    "the launcher of several processes is killed, and a process waits for the others and sees no"
    " signal",
    "its processes are asked to stop, and killed if they do not",
)
@pytest.mark.parametrize("behaviour", ["stops", "waits"])
def test_a_launched_process_ends_with_its_launcher(behaviour):
    command = [sys.executable, "-c", PARENT, CHILD, behaviour]
    with subprocess.Popen(
        command, env=os.environ | {LAUNCHER: "0.5"}, stdout=subprocess.PIPE, text=True
    ) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 30
    while is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_record_names_the_instructions_that_the_environment_chooses(tmp_path, monkeypatch):
    monkeypatch.setattr(device, "_PROCESSOR", tmp_path / "cpuinfo")
    device._PROCESSOR.write_text("model name\t: AMD EPYC\nflags\t\t: avx2\n")
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert device.processor() == "AMD EPYC, AVX2, ATEN_CPU_CAPABILITY=default"
