import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from coupled_adam_bench.cli import gpu_leases
from coupled_adam_bench.cli.gpu_leases import leased_gpus
from coupled_adam_bench.machine.visible_gpus import VISIBLE, named_gpus, visible_gpus


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose nvidia-smi lists three GPUs; return the folder of the leases."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\nfor i in 0 1 2; do echo \"GPU $i: NVIDIA H100 (UUID: GPU-$i)\"; echo '  MIG';"
        " done\n"
    )
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

        monkeypatch.setattr(
            gpu_leases, "time", SimpleNamespace(sleep=sleep)
        )  # other threads may sleep
        with leased_gpus(1, machine):
            assert os.environ[VISIBLE] == "0"
        assert waits == [1.0]
        monkeypatch.setenv(VISIBLE, "as the job leaves it")


def test_a_lease_ends_with_its_process(machine):
    code = f"""
import os, pathlib
from coupled_adam_bench.cli.gpu_leases import leased_gpus
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


UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0, 2,1", ["0", "2", "1"]),
        ("0,0", []),
        ("1gpu,+1", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("none", []),
        ("", []),
        ("0,-1,1", ["0"]),
        ("01,x,2", ["1"]),
        ("0,GPU-3", ["0"]),
        (f"{UUID},GPU-3,1", [UUID, "GPU-3"]),
        ("GPU-3,GPU-3", []),
        (f"MIG-{UUID}/1/2,MIG-{UUID}/1/3,{UUID}", [f"MIG-{UUID}/1/2", f"MIG-{UUID}/1/3"]),
    ],
)
def test_a_list_of_gpus_is_read_as_cuda_reads_it(value, expected, monkeypatch):
    assert named_gpus(value) == expected
    monkeypatch.setenv(VISIBLE, value)
    assert visible_gpus() == expected
    if "GPU" not in value:  # torch compares only the beginning of these
        assert list(map(str, torch.cuda._parse_visible_devices())) == expected


@pytest.mark.fault(
    "settings",
    "CUDA_VISIBLE_DEVICES names a GPU twice, or parts of GPUs by names with slashes",
    "a GPU that is named twice is refused, since CUDA takes none then; parts are leased like GPUs",
)
@pytest.mark.parametrize(
    ("visible", "count", "expected"),
    [("0,0", 2, "0,0"), (f"MIG-{UUID}/1/2,MIG-{UUID}/1/3", 1, f"MIG-{UUID}/1/2")],
)
def test_no_name_of_a_gpu_lets_a_job_wait_or_crash(visible, count, expected, machine, monkeypatch):
    monkeypatch.setenv(VISIBLE, visible)
    monkeypatch.setattr(
        gpu_leases, "time", SimpleNamespace(sleep=lambda _: pytest.fail("it waits for itself"))
    )
    with leased_gpus(count, machine):
        assert os.environ[VISIBLE] == expected


def test_more_gpus_than_there_are(machine):
    with (
        pytest.raises(
            ValueError, match=r"execution\.gpus: 8, but this machine shows 3 \(0, 1, 2\)"
        ),
        leased_gpus(8, machine),
    ):
        pass
