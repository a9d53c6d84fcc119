"""What a run tells of its jobs in SLURM's queue; tests/slurm has the same on a real one."""

import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from coupled_adam_bench.cli import queue
from coupled_adam_bench.cli.jobs import Jobs
from coupled_adam_bench.cli.queue import describe_stuck, fit_partitions, queued_jobs, stuck
from coupled_adam_bench.cli.resources import JobResources


def queued(
    state: str, reason: str, comment: str = "rule_prepare_wildcards_text-1", number: int = 12
) -> str:
    return f"{number}|{state}|{reason}|1-00:00:00|short|{Path.cwd()}|{comment}"


@pytest.fixture
def squeue(monkeypatch):
    """Return the lines that ``squeue`` is going to print, at one look after the other; the last
    stay."""
    looks: list[list[str]] = []

    def ask(*_: str) -> str:
        return "\n".join(looks.pop(0) if len(looks) > 1 else looks[0])

    monkeypatch.setattr(queue, "ask", ask)
    return looks


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (
            "PartitionTimeLimit",
            ["asks for 1440 minutes", "partition short", "--set-resources prepare:runtime=MINUTES"],
        ),
        (
            "PartitionConfig",
            ["prepare:mem_mb=MB", "--set-threads prepare=N", "prepare:slurm_partition=NAME"],
        ),
        ("PartitionNodeLimit", ["prepare:slurm_partition=NAME"]),
        ("PartitionDown", ["takes no jobs"]),
        ("BadConstraints", ["prepare:mem_mb=MB"]),
        ("ReqNodeNotAvail, UnavailableNodes:n1", ["maintenance", "prepare:runtime=MINUTES"]),
        (
            (
                "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority"
                " partitions"
            ),
            ["sinfo"],
        ),
        ("QOSMaxWallDurationPerJobLimit", ["--slurm-qos NAME"]),
        ("AssocGrpCPUMinutesLimit", ["prepare:slurm_account=NAME"]),
        ("AssocMaxJobsLimit", ["prepare:slurm_account=NAME"]),
        ("InvalidAccount", ["slurm_account=NAME"]),
        ("InvalidQOS", ["--slurm-qos NAME"]),
        ("JobHeldUser", ["scontrol release 12"]),
        ("JobHeldAdmin", ["scontrol release 12"]),
        ("DependencyNeverSatisfied", ["scontrol show job 12"]),
        ("ANewReason", ["scontrol show job 12"]),
    ],
)
@pytest.mark.fault(
    "cluster",
    "A job waits in SLURM's queue for a reason that does not end: a partition's limits, a QOS, an"
    " account, a hold.",
    "Within a minute the terminal names the job, the reason, and the setting that cures it.",
)
def test_a_reason_that_does_not_end_is_told_with_its_cure(reason, said, squeue):
    squeue.append([queued("PENDING", reason)])
    (job,) = stuck(queued_jobs())
    sentence = describe_stuck(job)
    assert sentence.startswith(f"prepare: SLURM job 12 may wait for ever ({reason}): ")
    assert all(word in sentence for word in said)
    assert "{" not in sentence


@pytest.mark.parametrize(
    "reason", ["None", "Priority", "Resources", "BeginTime", "Dependency", "Licenses", "Prolog"]
)
def test_mere_waiting_is_not_told(reason, squeue):
    squeue.append([queued("PENDING", reason), queued("RUNNING", "None", number=13)])
    assert stuck(queued_jobs()) == []


def test_a_job_of_several_rules_names_them(squeue):
    squeue.append(
        [queued("PENDING", "PartitionConfig", "rule_measure-batch-000_downstream_test_loss")]
    )
    sentence = describe_stuck(stuck(queued_jobs())[0])
    assert sentence.startswith("measure-batch-000_downstream_test_loss: SLURM job 12")
    assert "--set-resources RULE:mem_mb=MB" in sentence


def test_a_limit_on_all_jobs_ends_with_one_that_runs(squeue):
    squeue.append(
        [queued("PENDING", "QOSMaxCpuPerUserLimit"), queued("RUNNING", "None", number=13)]
    )
    assert stuck(queued_jobs()) == []


def test_jobs_of_others_are_none_of_ours(squeue, tmp_path):
    elsewhere = queued("PENDING", "JobHeldUser").replace(str(Path.cwd()), str(tmp_path))
    squeue.append([elsewhere, queued("PENDING", "JobHeldUser", comment="(null)")])
    assert queued_jobs() == []
    squeue[0] = []
    assert queued_jobs() == []


def test_a_reason_is_told_once_and_when_it_is_seen_twice(squeue, monkeypatch):
    held, limit = (
        queued("PENDING", "JobHeldUser"),
        queued("PENDING", "PartitionTimeLimit", "rule_choose", 13),
    )
    squeue += [[held], [limit], [held, limit], [held, limit], [held, limit]]
    pauses = itertools.count()

    def pause(_seconds: float) -> None:
        if next(pauses) == 5:
            raise StopIteration

    monkeypatch.setattr(queue.time, "sleep", pause)
    told: list[str] = []
    with pytest.raises(StopIteration):
        queue._watch(told.append)
    assert [sentence.partition(" may")[0] for sentence in told] == [
        "choose: SLURM job 13",
        "prepare: SLURM job 12",
    ]
    assert 2 * queue.LOOK_SECONDS < 60


class Planned:
    """A job as Snakemake plans it; its resources are those that the study wants, cut as ``jobs``
    says."""

    def __init__(
        self,
        asked: JobResources,
        rule: str,
        minutes: int,
        partition: str | None = None,
        fixed: bool = False,
    ) -> None:
        self._asked, self._minutes, self._partition, self._fixed = asked, minutes, partition, fixed
        self.rule, self.attempt = SimpleNamespace(name=rule), 1

    @property
    def resources(self) -> dict[str, object]:
        most = math.inf if self._fixed else self._asked.most_minutes.get(self.rule.name, math.inf)
        return {"runtime": min(self._minutes, most), "slurm_partition": self._partition}


@pytest.mark.fault(
    "cluster",
    "A profile names a partition that the cluster does not have: sbatch would refuse each job, and"
    " each of its retries.",
    "A sentence before the first job names the partition, its rules, and those that there are.",
)
def test_a_partition_that_is_not_there_is_refused_before_the_first_job(
    tiny_plan, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(queue, "partition_minutes", lambda: {"": 240, "short": 240, "long": 2880})
    asked = JobResources(Jobs(tiny_plan))
    planned = [
        Planned(asked, "prepare", 60),
        Planned(asked, "train_cells", 60, "gpus"),
        Planned(asked, "test_loss", 60, "short,gpus"),
    ]
    with pytest.raises(
        ValueError,
        match=r"^slurm_partition: gpus of test_loss, train_cells is no"
        " partition of this cluster; there are short, long; correct it",
    ):
        list(fit_partitions(asked, planned, {}))


@pytest.mark.fault(
    "cluster",
    "A partition ends jobs sooner than the study asks for: SLURM would let them wait for ever, or"
    " refuse them.",
    "They ask for what the partition gives, stages in one job for their share, and a sentence names"
    " them.",
)
def test_jobs_ask_for_what_their_partitions_give(tiny_plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        queue, "partition_minutes", lambda: {"": 240, "short": 240, "long": 2880, "quick": 30}
    )
    asked = JobResources(Jobs(tiny_plan))
    planned = [
        Planned(asked, "prepare", 1440),
        Planned(asked, "train_cells", 1440, "long"),
        Planned(asked, "test_loss", 240, "short"),
        Planned(asked, "downstream", 240, "short"),
        Planned(asked, "embeddings", 240, "long"),
        Planned(asked, "choose", 240, "quick,long"),
        Planned(asked, "train_trunk", 600, "short", fixed=True),
    ]
    groups = {"test_loss": "measure-{batch}", "downstream": "measure-{batch}"}
    default, short, own = fit_partitions(asked, planned, groups)
    assert default.startswith(
        "the default partition ends jobs after 240 minutes: prepare asks for 240 minutes in"
        " place of"
    )
    assert "downstream asks for 120 minutes in place of 240, test_loss asks for 120" in short
    assert (
        own
        == "partition short ends jobs after 240 minutes: train_trunk asks for 600, as your settings say,"
        " and may wait for ever"
    )
    wanted = {job.rule.name: job.resources["runtime"] for job in planned}
    assert wanted == {
        "prepare": 240,
        "train_cells": 1440,
        "test_loss": 120,
        "downstream": 120,
        "embeddings": 240,
        "choose": 240,
        "train_trunk": 600,
    }
