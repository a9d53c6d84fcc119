import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from coupled_adam_bench.machine import gpu_leases
from coupled_adam_bench.machine.gpu_leases import VISIBLE, leased_gpus


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose nvidia-smi lists three GPUs; return the folder of the leases."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nfor i in 0 1 2; do echo \"GPU $i: NVIDIA H100 (UUID: GPU-$i)\"; echo '  MIG'; done\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv(VISIBLE, raising=False)
    return tmp_path / "leases"


def test_jobs_get_different_gpus(machine, monkeypatch):
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        for job, count, expected in ((first, 1, "0"), (second, 2, "1,2")):
            job.enter_context(leased_gpus(count, machine))
            assert os.environ[VISIBLE] == expected
            monkeypatch.delenv(VISIBLE)  # the jobs are other processes
        waits = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            monkeypatch.setenv(VISIBLE, "as the job leaves it")
            first.close()

        monkeypatch.setattr(gpu_leases, "time", SimpleNamespace(sleep=sleep))  # other threads may sleep
        with leased_gpus(1, machine):
            assert os.environ[VISIBLE] == "0"
        assert waits == [1.0]
        monkeypatch.setenv(VISIBLE, "as the job leaves it")


def test_a_lease_ends_with_its_process(machine):
    code = f"""
import os, pathlib
from coupled_adam_bench.machine.gpu_leases import leased_gpus
with leased_gpus(2, pathlib.Path({str(machine)!r})):
    print(os.environ["{VISIBLE}"], flush=True)
    os.kill(os.getpid(), 9)
"""
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (killed.returncode, killed.stdout) == (-9, "0,1\n")
    with leased_gpus(1, machine):
        assert os.environ[VISIBLE] == "0"
    assert VISIBLE not in os.environ


@pytest.mark.parametrize(
    ("visible", "count", "expected"),
    [("5, 7,GPU-3", 1, "5"), ("5,7", 2, "5,7"), ("", 1, ""), ("5,7", 0, "5,7")],
)
def test_gpus_that_the_user_has_chosen(visible, count, expected, machine, monkeypatch):
    monkeypatch.setenv(VISIBLE, visible)
    with leased_gpus(count, machine):
        assert os.environ[VISIBLE] == expected
    assert os.environ[VISIBLE] == visible


def test_more_gpus_than_there_are(machine):
    with (
        pytest.raises(ValueError, match=r"execution\.gpus: 8, but this machine shows 3 \(0, 1, 2\)"),
        leased_gpus(8, machine),
    ):
        pass
