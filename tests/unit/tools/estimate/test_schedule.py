import random

import pytest

from coupled_adam_bench.tools.estimate.schedule import Job, critical_path, wall_seconds

DIAMOND = [
    Job("data", 0, 5.0),
    Job("a", 1, 10.0, ("data",)),
    Job("b", 1, 4.0, ("data",)),
    Job("c", 2, 3.0, ("a", "b")),
]


def test_by_hand():
    assert [job.name for job in critical_path(DIAMOND)] == ["data", "a", "c"]
    assert wall_seconds(DIAMOND, 2) == 5 + 10 + 3
    assert wall_seconds([*DIAMOND, Job("d", 1, 20.0)], 2) == 20 + 3  # a and b, from 5 to 19, go beside d
    assert wall_seconds(DIAMOND[:3], 1) == 5 + 10 + 4
    assert wall_seconds([], 3) == 0
    assert critical_path([]) == []


def test_the_longest_goes_first():
    jobs = [Job(name, 1, seconds) for name, seconds in zip("abcd", (1, 1, 2, 4), strict=True)]
    assert wall_seconds(jobs, 2) == 4


@pytest.mark.parametrize("seed", range(20))
def test_bounds_of_any_schedule(seed):
    rng = random.Random(seed)
    jobs: list[Job] = []
    for number in range(30):
        after = tuple({job.name for job in rng.sample(jobs, min(len(jobs), rng.randrange(3)))})
        jobs.append(Job(str(number), rng.randrange(5), rng.uniform(0, 10), after))
    longest = sum(job.seconds for job in critical_path(jobs))
    work = sum(job.slots * job.seconds for job in jobs)
    assert wall_seconds(jobs, 10**6) == pytest.approx(longest)
    for slots in (4, 7):
        wall = wall_seconds(jobs, slots)
        assert wall >= max(longest, work / slots) - 1e-9
        assert wall <= sum(job.seconds for job in jobs) + 1e-9
