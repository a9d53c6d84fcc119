import math
from pathlib import Path

import pytest

from coupled_adam_bench.machine import slurm
from coupled_adam_bench.machine.slurm import check_slurm, parse_duration, partition_minutes


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put commands with these bodies, and no others, where SLURM's are looked for."""

    def install(**bodies: str) -> None:
        for name, body in bodies.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return install


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:00", 0),
        ("4:05", 245),
        ("4:00:00", 14400),
        ("1-02:03:04", 93784),
        ("UNLIMITED", math.inf),
        ("infinite", math.inf),
        ("INVALID", None),
        ("", None),
    ],
)
def test_times_as_slurm_writes_them(text, seconds):
    assert parse_duration(text) == seconds


def test_partitions_with_their_limits(commands):
    commands(sinfo="echo 'main*|infinite'; echo 'short|4:00:00'; echo 'day|1-00:00:00'")
    assert partition_minutes() == {"main": math.inf, "": math.inf, "short": 240, "day": 1440}


@pytest.mark.fault(
    "cluster",
    "`--profile slurm` on a machine without SLURM, without `sacct` alone, or whose controller does"
    " not answer.",
    "One sentence before the first job says what is missing and what to do.",
)
@pytest.mark.parametrize(
    ("absent", "ping", "said"),
    [
        (
            {*slurm._COMMANDS},
            "",
            "this machine has no sbatch, squeue, scancel, scontrol, sinfo, sacct; start on a login",
        ),
        ({"sacct"}, "", "this machine has no sacct; start on a login node"),
        (
            set(),
            "echo 'Slurmctld(primary) at head is DOWN'; exit 1",
            "(Slurmctld(primary) at head is DOWN)",
        ),
        (
            set(),
            "echo 'Slurmctld(primary) at head is DOWN'",
            "(Slurmctld(primary) at head is DOWN)",
        ),
        (set(), "exec /bin/sleep 60", "timed out after 0.5 seconds"),
        (set(), "echo 'bad configuration' >&2; exit 1", "(bad configuration)"),
    ],
)
def test_a_machine_that_cannot_submit(absent, ping, said, commands, monkeypatch):
    monkeypatch.setattr(slurm, "_ANSWER_SECONDS", 0.5)
    commands(**{name: "" for name in slurm._COMMANDS if name not in absent})
    if "scontrol" not in absent:
        commands(scontrol=ping)
    with pytest.raises(ValueError) as refused:
        check_slurm()
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "leave out --profile slurm" in str(refused.value)


def test_a_machine_that_can_submit(commands):
    commands(
        **dict.fromkeys(slurm._COMMANDS, "")
        | {"scontrol": "echo 'Slurmctld(primary) at head is UP'"}
    )
    check_slurm()
