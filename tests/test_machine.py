"""Leases of GPUs: real processes on a machine that says it has two."""

import subprocess
import sys
from pathlib import Path

import pytest

from coupled_adam_bench.machine import lease

JOB = """
import sys, time
from pathlib import Path
from coupled_adam_bench.machine import lease

count, seconds, folder = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
with lease(count, ("GPU-a", "GPU-b"), folder) as gpus:
    for gpu in gpus:
        (folder / f"{gpu}.held").touch(exist_ok=False)  # fails where another job has it
    print(*gpus, flush=True)
    time.sleep(seconds)
    for gpu in gpus:
        (folder / f"{gpu}.held").unlink()
"""


def start(folder: Path, count: int, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", JOB, str(count), str(seconds), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_three_jobs_share_two_gpus(tmp_path: Path) -> None:
    jobs = [start(tmp_path, 1, 0.5) for _ in range(3)] + [start(tmp_path, 2, 0.1)]
    said = [job.communicate(timeout=60)[0].split() for job in jobs]
    assert [job.returncode for job in jobs] == [0] * 4
    assert sorted(map(len, said)) == [1, 1, 1, 2]


def test_a_killed_job_leaves_its_gpu(tmp_path: Path) -> None:
    with start(tmp_path, 2, 600) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "0 1\n"
        killed.kill()
    with lease(2, ("GPU-a", "GPU-b"), tmp_path) as gpus:
        assert gpus == (0, 1)


def test_no_more_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"execution\.gpus: 2"), lease(2, ("GPU-a",), tmp_path):
        pass
