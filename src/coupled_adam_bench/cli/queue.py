"""What a run tells of its jobs in SLURM's queue: limits of partitions that cut them, and those that
wait for ever."""

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coupled_adam_bench.cli.resources import JobResources
from coupled_adam_bench.machine.slurm import ask, parse_duration, partition_minutes

LOOK_SECONDS = 20.0
"""How often the queue is looked at. A reason is told when it is seen twice, since some pass in a
moment."""
# Reasons that end by themselves (https://slurm.schedmd.com/job_reason_codes.html). All others are
# told.
_WAITING = (
    "None",
    "Priority",
    "Resources",
    "Dependency",
    "BeginTime",
    "Licenses",
    "Reservation",
    "Prolog",
    "Cleaning",
    "JobArrayTaskLimit",
)
_SHARED = ("QOS", "Assoc")
"""How the reasons begin that end with another job, if there is one: limits on all jobs of a user or
an account."""
_TIME = "ask for less time (--set-resources {rule}:runtime=MINUTES)"
_LESS = "ask for less (--set-resources {rule}:mem_mb=MB, :gpu=N; --set-threads {rule}=N)"
_PARTITION = "name another partition (--set-resources {rule}:slurm_partition=NAME)"
# What cures a reason, by how it begins.
_CURES = {
    "PartitionTimeLimit": (
        f"the job asks for {{limit}}, more than partition {{partition}} gives; {_TIME}"
        f" or {_PARTITION}"
    ),
    "PartitionNodeLimit": (
        f"partition {{partition}} does not have the nodes that the job asks for; {_PARTITION}"
    ),
    "PartitionConfig": (
        f"partition {{partition}} has no nodes with all that the job asks for; {_LESS}"
        f" or {_PARTITION}"
    ),
    "PartitionDown": f"partition {{partition}} takes no jobs; {_PARTITION}",
    "PartitionInactive": f"partition {{partition}} takes no jobs; {_PARTITION}",
    "BadConstraints": (
        f"no node has all that it asks for; {_LESS}, for another gpu_model or constraint or"
        f" {_PARTITION}"
    ),
    "ReqNodeNotAvail": (
        "nodes that it needs are down or kept for a maintenance (`sinfo --list-reasons`, `scontrol"
        f" show reservation`); {_TIME}, so that it ends before, or {_PARTITION}"
    ),
    "Nodes required": (
        "nodes that it needs are down, drained or kept for others (`sinfo --list-reasons`); wait,"
        f" or {_PARTITION}"
    ),
    "InvalidAccount": "name one of your accounts (--set-resources {rule}:slurm_account=NAME)",
    "InvalidQOS": "name a QOS that you may use (--slurm-qos NAME)",
    "JobHeld": (
        "somebody holds it, or SLURM does after it could not be started; `scontrol release"
        " {number}` lets it go"
    ),
    "QOS": (
        "it asks for more than its QOS gives or has left (`sacctmgr show qos`); "
        f"{_TIME}, {_LESS}, or name another QOS (--slurm-qos NAME)"
    ),
    "Assoc": (
        "it asks for more than your account may have or has left (`sacctmgr show assoc`); "
        f"{_TIME}, {_LESS}, or name another account (--set-resources {{rule}}:slurm_account=NAME)"
    ),
}
_OTHER = "`scontrol show job {number}` shows what it asks for"


def fit_partitions(
    asked: JobResources, planned: Iterable[Any], groups: Mapping[str, str]
) -> Iterator[str]:
    """Let jobs ask for no more time than their partitions give, and yield sentences that name those
    that wanted more. ``ValueError`` for a partition that this cluster does not have.

    ``planned`` are Snakemake's jobs, and ``groups`` those of its rules that share a job of SLURM,
    whose times add up. A job that is cut off can be run again: training goes on from its
    checkpoint, all others with what is finished.
    """
    allowed = partition_minutes()
    members = Counter(groups.values())
    planned = list(planned)
    _check_partitions(planned, allowed)
    cut: dict[str, set[str]] = {}
    too_long: dict[str, set[str]] = {}
    for job in planned:
        rule, partition = job.rule.name, job.resources.get("slurm_partition") or ""
        minutes = max(allowed.get(name, math.inf) for name in str(partition).split(","))
        share = minutes / members.get(groups.get(rule, ""), 1)
        wanted = job.resources.get("runtime") or 0
        if wanted <= share:
            continue
        asked.most_minutes[rule] = max(1, int(share))
        job.attempt = job.attempt  # Snakemake computes its resources anew
        where = f"partition {partition}" if partition else "the default partition"
        limit = f"{where} ends jobs after {minutes:g} minutes"
        if job.resources.get("runtime") > share:
            too_long.setdefault(limit, set()).add(f"{rule} asks for {wanted}, as your settings say")
        else:
            cut.setdefault(limit, set()).add(
                f"{rule} asks for {int(share)} minutes in place of {wanted}"
            )
    for limit, rules in cut.items():
        yield (
            f"{limit}: {', '.join(sorted(rules))}. A job that needs more goes on in its next"
            " attempt; slurm_partition in the profile names another partition"
        )
    for limit, rules in too_long.items():
        yield f"{limit}: {', '.join(sorted(rules))}, and may wait for ever"


def _check_partitions(planned: Iterable[Any], allowed: Mapping[str, float]) -> None:
    """Raise ``ValueError`` for partitions that jobs name and SLURM does not have: each of its
    answers to them would be a job that has failed."""
    unknown: dict[str, set[str]] = {}
    for job in planned:
        for name in filter(None, str(job.resources.get("slurm_partition") or "").split(",")):
            if name not in allowed:
                unknown.setdefault(name, set()).add(job.rule.name)
    there = ", ".join(filter(None, allowed))
    problems = [
        f"slurm_partition: {name} of {', '.join(sorted(rules))} is no partition of this cluster;"
        f" there are {there}; correct it in the profile or in --set-resources"
        for name, rules in unknown.items()
    ]
    if problems:
        raise ValueError("\n".join(problems))


@dataclass(frozen=True)
class QueuedJob:
    """A job as ``squeue`` shows it."""

    number: str
    state: str
    reason: str
    limit: str
    partition: str
    folder: str
    comment: str

    @property
    def rule(self) -> str:
        """The name of its rule, or of its group with those of its rules: the plugin writes them
        into the comment."""
        return self.comment.removeprefix("rule_").partition("_wildcards_")[0]

    @property
    def is_group(self) -> bool:
        """Whether it is a job of several rules, each of which has its settings."""
        return "-" in self.rule


def queued_jobs() -> list[QueuedJob]:
    """Return the jobs in SLURM's queue that Snakemake started in this folder; ``ValueError``
    without an answer."""
    form = "%A|%T|%r|%l|%P|%Z|%k"
    lines = ask(
        "squeue",
        "--noheader",
        f"--user={os.getuid()}",
        "--states=PENDING,RUNNING",
        f"--format={form}",
    )
    jobs = [QueuedJob(*line.split("|", form.count("|"))) for line in lines.splitlines()]
    return [
        job for job in jobs if Path(job.folder) == Path.cwd() and job.comment.startswith("rule_")
    ]


def stuck(jobs: list[QueuedJob]) -> list[QueuedJob]:
    """Return the jobs that wait for a reason that does not end by itself."""
    is_any_running = any(job.state == "RUNNING" for job in jobs)
    return [
        job
        for job in jobs
        if job.state == "PENDING"
        and job.reason not in _WAITING
        and not (is_any_running and job.reason.startswith(_SHARED))
    ]


def describe_stuck(job: QueuedJob) -> str:
    """Return a sentence that names a job, why it waits, and what cures it."""
    cure = next((cure for begin, cure in _CURES.items() if job.reason.startswith(begin)), _OTHER)
    seconds = parse_duration(job.limit)
    limit = job.limit if seconds is None else f"{seconds / 60:g} minutes"
    rule = "RULE" if job.is_group else job.rule
    said = cure.format(rule=rule, limit=limit, partition=job.partition, number=job.number)
    return f"{job.rule}: SLURM job {job.number} may wait for ever ({job.reason}): {said}"


def watch_queue(tell: Callable[[str], None]) -> None:
    """Look at the queue as long as this process lives, and tell once of each rule and reason that
    jobs wait for."""
    threading.Thread(target=_watch, args=(tell,), daemon=True).start()


def _watch(tell: Callable[[str], None]) -> None:
    before: set[tuple[str, str]] = set()
    told: set[tuple[str, str]] = set()
    while True:
        time.sleep(LOOK_SECONDS)
        try:
            now = {(job.rule, job.reason): job for job in stuck(queued_jobs())}
        except ValueError:  # SLURM does not answer for a while: Snakemake waits for it, too
            continue
        for key in sorted((now.keys() & before) - told):
            tell(describe_stuck(now[key]))
            told.add(key)
        before = set(now)
