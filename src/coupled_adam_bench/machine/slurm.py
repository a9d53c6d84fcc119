"""What SLURM's own commands say: whether they answer, and the limits of partitions."""

import math
import re
import shutil
import subprocess

_ANSWER_SECONDS = 30.0
"""How long SLURM may take to answer; a job of training is warned two minutes before its end."""
_COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "sacct")
"""What Snakemake's plugin calls where Snakemake runs; `sacct` may know no jobs, but has to be
there."""


def ask(*command: str) -> str:
    """Return what a command of SLURM's prints; ``ValueError`` that says why if it fails or does not
    answer."""
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(str(error)) from None
    if result.returncode != 0:
        raise ValueError(f"{' '.join(command)}: {(result.stderr or result.stdout).strip()}")
    return result.stdout.strip()


def check_slurm() -> None:
    """Raise ``ValueError`` if this machine cannot submit jobs: a command is missing, or no
    controller answers."""
    if missing := [command for command in _COMMANDS if shutil.which(command) is None]:
        raise ValueError(
            f"--profile slurm: this machine has no {', '.join(missing)}; start on a login node of a"
            " cluster with SLURM, where `squeue` shows the queue, or leave out --profile slurm to"
            " run the study on this machine"
        )
    try:
        answer = ask("scontrol", "ping")
    except ValueError as error:
        answer = str(error)
    if " is UP" not in answer:
        said = next(iter(answer.removeprefix("scontrol ping: ").splitlines()), "")
        raise ValueError(
            f"--profile slurm: no controller of SLURM answers ({said}); ask those who run the"
            " cluster, or leave out --profile slurm to run the study on this machine"
        )


def parse_duration(text: str) -> float | None:
    """Return the seconds of a time as SLURM writes it, such as ``1-02:30:00`` or ``4:00``; None for
    what is none."""
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return math.inf
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def partition_minutes() -> dict[str, float]:
    """Return the longest time limit of each partition in minutes, infinity if it has none; "" is
    the default one."""
    minutes: dict[str, float] = {}
    for line in ask("sinfo", "--all", "--noheader", "--format=%P|%l").splitlines():
        name, _, limit = line.strip().partition("|")
        seconds = parse_duration(limit)
        longest = math.inf if seconds is None else seconds / 60
        minutes[name.rstrip("*")] = longest
        if name.endswith("*"):
            minutes[""] = longest
    return minutes
