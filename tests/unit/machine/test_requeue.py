import os
from collections.abc import Callable
from pathlib import Path

import pytest

from coupled_adam_bench.machine import requeue
from coupled_adam_bench.machine.requeue import requeue_own_job


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put commands named squeue and scontrol first on the path; return the file that says how scontrol was called."""

    def install(squeue: str, scontrol: str = "true") -> Path:
        calls = tmp_path / "calls"
        for name, body in (("squeue", squeue), ("scontrol", f'echo "$@" > {calls}; {scontrol}')):
            (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("SLURM_JOB_ID", "17")
        return calls

    return install


def test_a_running_job_goes_back(slurm, capsys):
    calls = slurm("echo RUNNING")
    assert requeue_own_job()
    assert calls.read_text() == "requeue 17\n"
    assert "SLURM job 17 goes back into the queue" in capsys.readouterr().err


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING", "TIMEOUT", "PREEMPTED", ""])
@pytest.mark.fault(
    "cluster",
    "A training job is cancelled (scancel, or Ctrl-C in Snakemake) or has passed its limit, and is asked to stop.",
    "It writes a checkpoint and does not put itself back into the queue.",
)
def test_a_job_that_was_ended_does_not_come_back(state, slurm):
    calls = slurm(f"echo {state}")
    assert not requeue_own_job()
    assert not calls.exists()


@pytest.mark.fault(
    "cluster",
    "the cluster forbids jobs to go back into the queue, or a node has no `scontrol`",
    "the log says so; the job ends with status 75, and Snakemake's retry goes on",
)
@pytest.mark.parametrize(
    ("squeue", "scontrol", "said"),
    [
        (
            "echo RUNNING",
            "echo 'Requested operation is presently disabled' >&2; exit 1",
            "scontrol requeue 17: Requested",
        ),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", "true", "Unable to contact slurm controller"),
        ("exec sleep 60", "true", "timed out after 0.5 seconds"),
        ("printf '\\377' >&2; exit 1", "true", "squeue --noheader --format=%T --jobs 17"),
    ],
)
def test_what_slurm_refuses_is_said(squeue, scontrol, said, slurm, monkeypatch, capsys):
    monkeypatch.setattr(requeue, "_ANSWER_SECONDS", 0.5)
    slurm(squeue, scontrol)
    assert not requeue_own_job()
    error = capsys.readouterr().err
    assert error.startswith("the job is not put back into the queue: ")
    assert said in error


def test_without_slurm(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not requeue_own_job()
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert not requeue_own_job()
    assert "No such file or directory: 'squeue'" in capsys.readouterr().err
