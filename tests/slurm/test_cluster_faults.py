"""Faults of a cluster, one after the other in one study: all of them end in the tables of an
undisturbed local run."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from slurm_study import Job, StudyOnSlurm, ended, wait_for

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.nightly, pytest.mark.timeout(3000)]
WAIT = 600


@pytest.fixture
def study(tiny_study, tmp_path) -> Path:
    settings = tiny_study()
    settings["grid"][0] |= {"tokens": [{"steps": 1500}], "seeds": [1, 2]}
    # 500 MB are too few for Snakemake and torch in one job, and enough after a retry or two.
    settings["execution"] |= {
        "train_cells_per_job": 2,
        "train_mem_mb": 500,
        "evaluation_mem_mb": 2500,
    }
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture
def undisturbed(study, slurm_cluster, tmp_path) -> dict[str, bytes]:
    local = StudyOnSlurm(tmp_path / "local", study, slurm_cluster)
    assert local.start("tables", profile=False).wait(WAIT) == 0, local.log.read_text()[-5000:]
    return local.outputs()


def daemon(cluster: dict[str, str], name: str) -> int:
    """Return the process id of a daemon of the cluster: slurmctld, slurmd-n1."""
    return int((Path(cluster["SLURM_CONF"]).parent / "run" / f"{name}.pid").read_text())


def kill_daemon(cluster: dict[str, str], name: str) -> None:
    pid = daemon(cluster, name)
    os.kill(pid, signal.SIGKILL)
    wait_for(
        lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text(),
        name,
    )


def start_daemon(study: StudyOnSlurm, *command: str) -> None:
    path = f"{study.environment['PATH']}{os.pathsep}/usr/sbin"
    subprocess.run(command, env=study.environment | {"PATH": path}, check=True, timeout=60)


def training(study: StudyOnSlurm) -> list[Job]:
    return [job for job in study.jobs("RUNNING") if "train_cells" in job.comment]


def trains_on(study: StudyOnSlurm) -> Callable[[], list[Job]]:
    """Return the function that gives the running training jobs once the histories have grown from
    now on."""
    before = study.history_lines()

    return lambda: training(study) if study.history_lines() > before else []


def await_training(study: StudyOnSlurm) -> list[Job]:
    wait_for(trains_on(study), f"training goes on:\n{study.log.read_text()[-3000:]}", WAIT)
    return training(study)


@pytest.mark.fault(
    "cluster",
    "One after the other: training jobs exceed their memory; one is cancelled (`scancel`); one is"
    " put back into the queue (`scontrol requeue`); slurmctld is killed and comes back; the node of"
    " a job goes down and comes back; Snakemake is killed (SIGKILL) with jobs in the queue; then"
    " two Snakemakes start at once.",
    "A retry has more memory, the cancelled job is retried, SLURM starts the others again, no two"
    " jobs train a cell at once, and the tables are byte for byte those of a local run.",
)
def test_a_bad_week(study, undisturbed, slurm_cluster, tmp_path):
    pytest.importorskip("snakemake_executor_plugin_slurm")
    cluster = StudyOnSlurm(tmp_path / "slurm", study, slurm_cluster)
    process = cluster.start("tables")
    with ended(process):
        jobs = await_training(cluster)
        wait_for(lambda: cluster.jobs("FAILED", "OUT_OF_MEMORY"), "jobs over their memory", WAIT)
        jobs = await_training(cluster)
        cluster.slurm("scancel", jobs[0].number)
        jobs = await_training(cluster)
        cluster.slurm("scontrol", "requeue", jobs[-1].number)
        await_training(cluster)

        kill_daemon(slurm_cluster, "slurmctld")
        time.sleep(5)
        start_daemon(cluster, "slurmctld")
        wait_for(
            lambda: (
                subprocess.run(["squeue"], env=cluster.environment, check=False).returncode == 0
            ),
            "slurmctld",
        )
        if training(cluster):
            node = cluster.slurm("squeue", "-h", "-t", "RUNNING", "-o", "%N").split()[0]
            kill_daemon(slurm_cluster, f"slurmd-{node}")
            cluster.slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
            start_daemon(
                cluster, "slurmd", "-N", node
            )  # the node is up again when its slurmd answers
            await_training(cluster)
        process.kill()
        process.wait(60)

    first = cluster.start("tables")
    second = StudyOnSlurm(cluster.folder, study, slurm_cluster)
    second.log = tmp_path / "second.log"
    with ended(first):
        other = second.start("tables")
        with ended(other):
            first.wait()
            other.wait()
    assert first.returncode == 0, cluster.log.read_text()[-5000:]
    assert other.returncode == 0, second.log.read_text()[-5000:]
    assert cluster.outputs() == undisturbed
