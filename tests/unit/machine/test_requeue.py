import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coupled_adam_bench.machine import requeue
from coupled_adam_bench.machine import slurm as slurm_commands
from coupled_adam_bench.machine.requeue import requeue_own_job, stop_before_the_limit


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put commands named squeue and scontrol first on the path; return the file that says how
    scontrol was called."""

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
    "A training job is cancelled (scancel, or Ctrl-C in Snakemake) or has passed its limit, and is"
    " asked to stop.",
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
        (
            "echo 'Unable to contact slurm controller' >&2; exit 1",
            "true",
            "Unable to contact slurm controller",
        ),
        ("exec sleep 60", "true", "timed out after 0.5 seconds"),
        ("printf '\\377' >&2; exit 1", "true", "squeue --noheader --format=%T --jobs 17"),
    ],
)
def test_what_slurm_refuses_is_said(squeue, scontrol, said, slurm, monkeypatch, capsys):
    monkeypatch.setattr(slurm_commands, "_ANSWER_SECONDS", 0.5)
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


@pytest.fixture
def stopped(monkeypatch) -> threading.Event:
    """Return the event that a SIGTERM to this process sets."""
    event = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: event.set())
    monkeypatch.setattr(requeue, "_ASK_AGAIN_SECONDS", 0.1)
    yield event
    signal.signal(signal.SIGTERM, before)


def within(event: threading.Event, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not event.is_set() and time.monotonic() < deadline:
        time.sleep(0.01)  # a signal's handler runs between the steps of this thread
    return event.is_set()


@pytest.mark.fault(
    "cluster",
    "SLURM's controller does not answer a training job that asks when its time ends, and the limit"
    " is changed then.",
    "It asks again, and stops before the limit as it is.",
)
def test_a_job_asks_how_long_it_has_and_stops_before(slurm, stopped, tmp_path, capsys):
    answers = tmp_path / "answers"
    answers.write_text("error\n0:01\nerror\n0:01\n0:00\n")
    first = f"answer=$(head -n 1 {answers}); sed -i 1d {answers}"
    slurm(f"{first}; [ $answer != error ] || exit 1; echo $answer")
    stop_before_the_limit(120)
    assert within(stopped, 10)
    assert answers.read_text() == ""
    assert "SLURM job 17 has 0 s left: training is asked to stop" in capsys.readouterr().err


@pytest.mark.fault(
    "cluster",
    "The time limit is shorter than the two minutes that a training job takes to stop.",
    "It stops after three quarters of the limit, so that most of the time goes into training.",
)
def test_a_short_limit(slurm, stopped, monkeypatch):
    waits = []
    answers = iter(["4:00", "1:00"])
    monkeypatch.setattr(requeue, "ask", lambda *_: next(answers))
    monkeypatch.setattr(requeue.time, "sleep", waits.append)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    requeue._watch("17", before=121)
    assert waits == [180]
    assert stopped.is_set()


@pytest.mark.parametrize("left", ["UNLIMITED", "1-00:00:00"])
def test_a_job_with_time_is_not_stopped(left, slurm, stopped):
    slurm(f"echo {left}")
    stop_before_the_limit(120)
    assert not within(stopped, 0.5)


def test_only_jobs_of_slurm_are_stopped(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    before = threading.active_count()
    stop_before_the_limit(10**9)
    assert threading.active_count() == before
