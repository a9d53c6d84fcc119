"""The jobs of a study that are still to do, the longest chain of them, and their time on a number of machines."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """A job: what it takes of the ``slots`` that it shares with others, its seconds, and the jobs before it."""

    name: str
    slots: int
    seconds: float
    after: tuple[str, ...] = ()


def critical_path(jobs: Sequence[Job]) -> list[Job]:
    """Return the chain of jobs that takes longest; each job stands behind those that it comes after."""
    ends: dict[str, tuple[float, Job | None]] = {}
    by_name = {job.name: job for job in jobs}
    for job in jobs:
        before = max(job.after, key=lambda name: ends[name][0], default=None)
        ends[job.name] = (job.seconds + (ends[before][0] if before else 0), by_name[before] if before else None)
    chain: list[Job] = []
    last = max(jobs, key=lambda job: ends[job.name][0], default=None)
    while last is not None:
        chain.insert(0, last)
        last = ends[last.name][1]
    return chain


def wall_seconds(jobs: Sequence[Job], slots: int) -> float:
    """Return the time until all jobs have ended, if each job that can start does so, those with the longest work first.

    A job that takes more than ``slots`` must not be there.
    """
    work = _remaining(jobs)
    waiting = {job.name: len(job.after) for job in jobs}
    followers: dict[str, list[Job]] = {job.name: [] for job in jobs}
    for job in jobs:
        for name in job.after:
            followers[name].append(job)
    ready = [job for job in jobs if not job.after]
    running: list[tuple[float, int, Job]] = []
    now, free, number = 0.0, slots, 0
    while ready or running:
        ready.sort(key=lambda job: -work[job.name])
        for job in list(ready):
            if job.slots <= free:
                ready.remove(job)
                free -= job.slots
                number += 1
                heapq.heappush(running, (now + job.seconds, number, job))
        assert running, "a job takes more than there is"
        now, _, ended = heapq.heappop(running)
        free += ended.slots
        for job in followers[ended.name]:
            waiting[job.name] -= 1
            if not waiting[job.name]:
                ready.append(job)
    return now


def _remaining(jobs: Sequence[Job]) -> Mapping[str, float]:
    """Return by name the seconds of the longest chain that begins with a job."""
    after: dict[str, float] = {}
    for job in reversed(jobs):
        after[job.name] = job.seconds + after.get(job.name, 0.0)
        for name in job.after:
            after[name] = max(after.get(name, 0.0), after[job.name])
    return after
