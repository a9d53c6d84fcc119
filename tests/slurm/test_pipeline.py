"""A study on a real SLURM cluster through the shipped profile gives the tables of a local run,
whatever is cut off."""

import json
import os
import signal
import time
from collections import Counter

import pytest
import yaml
from finished import outputs
from slurm_study import StudyOnSlurm, ended, wait_for
from starts import make_tables

from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.settings import parse_study

pytestmark = pytest.mark.xdist_group("slurm")  # one cluster, in one worker
CUTS = 2


SHORT = ("--default-resources", "slurm_partition=short", "mem_mb=4000")
"""A partition that ends jobs after half an hour, less than any job of ours asks for."""


@pytest.mark.timeout(600)
@pytest.mark.fault(
    "cluster",
    "The partition ends jobs after half an hour, and each job of the study asks for an hour or"
    " more.",
    "A sentence names them; they ask for half an hour, and the tables are those of a local run.",
)
def test_a_study_has_the_tables_of_the_local_run(finished, slurm_cluster, tmp_path):
    pytest.importorskip("snakemake_executor_plugin_slurm")
    settings = yaml.safe_load((finished / "study.yaml").read_text())
    settings["execution"] |= {"train_mem_mb": 3000, "evaluation_mem_mb": 2500}
    settings["execution"] |= {"track_seconds": None}
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump(settings))
    cluster = StudyOnSlurm(tmp_path / "slurm", study, slurm_cluster)
    process = cluster.start("evaluate", *SHORT)
    with ended(process):
        assert process.wait(500) == 0, cluster.log.read_text()[-5000:]
    make_tables(cluster.folder)  # the report is no job of the cluster
    assert cluster.outputs() == outputs(finished)
    said = cluster.log.read_text()
    assert "partition short ends jobs after 30 minutes: " in said
    assert "prepare asks for 30 minutes in place of 60" in said
    assert "test_loss asks for 15 minutes in place of 120" in said
    # The data, one job that trains, and two for three stages of evaluation.
    jobs = cluster.jobs()
    assert {job.state for job in jobs} == {"COMPLETED"}
    assert len(jobs) == 4


@pytest.mark.fault(
    "cluster",
    "The user's settings ask for more time than the partition gives, so SLURM lets the job wait for"
    " ever; then Ctrl-C.",
    "Within a minute the terminal names the job, the reason and the setting; nothing is left after"
    " Ctrl-C.",
)
def test_a_job_that_would_wait_for_ever_is_named(finished, slurm_cluster, tmp_path):
    pytest.importorskip("snakemake_executor_plugin_slurm")
    cluster = StudyOnSlurm(tmp_path / "slurm", finished / "study.yaml", slurm_cluster)
    process = cluster.start("data", *SHORT, "--set-resources", "prepare:runtime=500")
    with ended(process):
        wait_for(lambda: cluster.jobs("PENDING"), f"a job waits:\n{cluster.log.read_text()}", 60)
        wait_for(
            lambda: "may wait for ever (PartitionTimeLimit)" in cluster.log.read_text(),
            "the reason is told",
            60,
        )
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 1
    said = cluster.log.read_text()
    assert "prepare asks for 500, as your settings say, and may wait for ever" in said
    assert "the job asks for 500 minutes, more than partition short gives" in said
    assert "--set-resources prepare:runtime=MINUTES" in said
    assert cluster.jobs("PENDING", "RUNNING") == []


@pytest.mark.fault(
    "cluster",
    "The path of Python has a space or a quote, which Snakemake does not quote in the jobs of a"
    " cluster.",
    "A sentence names the path and what to do before the first job.",
)
def test_a_python_that_no_job_could_start_is_refused(finished, slurm_cluster, tmp_path):
    cluster = StudyOnSlurm(tmp_path / "slurm", finished / "study.yaml", slurm_cluster)
    python = finished.parent / ".venv/bin/python"
    process = cluster.start("tables", python=python)
    with ended(process):
        assert process.wait(60) == 1
    said = cluster.log.read_text()
    assert f"{python}: no job of a cluster could start this Python" in said
    assert "Traceback" not in said
    assert cluster.jobs("PENDING", "RUNNING") == []


@pytest.mark.fault(
    "cluster",
    "A job asks for a partition that does not exist.",
    "It is refused before the first job, with the partitions that there are.",
)
def test_a_partition_that_is_not_there_is_refused(finished, slurm_cluster, tmp_path):
    pytest.importorskip("snakemake_executor_plugin_slurm")
    cluster = StudyOnSlurm(tmp_path / "slurm", finished / "study.yaml", slurm_cluster)
    process = cluster.start(
        "data", "--retries", "1", "--default-resources", "slurm_partition=nope", "mem_mb=4000"
    )
    with ended(process):
        assert process.wait(200) == 1
    said = cluster.log.read_text()
    assert "nope of prepare is no partition of this cluster; there are main, short" in said
    assert "sbatch" not in said


@pytest.mark.nightly
@pytest.mark.timeout(1500)
@pytest.mark.fault(
    "cluster",
    "each training job is warned of its time limit twice, and no retry is allowed",
    "it writes a checkpoint and goes back into SLURM's queue; the tables are those of a local run",
)
@pytest.mark.parametrize(("processes", "steps"), [(1, 1500), (2, 400)])
def test_training_that_is_cut_twice_gives_the_tables_of_the_local_run(
    processes, steps, slurm_cluster, tiny_study, tmp_path
):
    pytest.importorskip("snakemake_executor_plugin_slurm")
    settings = tiny_study()
    settings["grid"][0] |= {"tokens": [{"steps": steps}], "seeds": [1, 2]}
    settings["execution"] |= {
        "train_cells_per_job": 2,
        "train_processes": processes,
        "parallel": "fsdp",
        "train_mem_mb": 3000,
        "evaluation_mem_mb": 2500,
        "checkpoint_every": 100_000,  # the warning alone writes one
    }
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump(settings))
    cells = list(make_plan(parse_study(settings)).cells)
    of_job = {"batch-000": cells[:2], "batch-001": cells[2:]}

    local = StudyOnSlurm(tmp_path / "local", study, slurm_cluster)
    assert local.start("tables", profile=False).wait(500) == 0, local.log.read_text()[-5000:]

    cluster = StudyOnSlurm(tmp_path / "slurm", study, slurm_cluster)
    process = cluster.start("--retries", "0", "tables")
    cuts: Counter[str] = Counter()
    begun: dict[tuple[str, int], int] = {}
    """The lines of history with which each start of a job began."""
    deadline = time.monotonic() + 700
    with ended(process):
        while process.poll() is None:
            assert time.monotonic() < deadline, cluster.log.read_text()[-5000:]
            time.sleep(0.5)
            for job in cluster.jobs("RUNNING"):
                name = job.comment.rpartition("_")[2]
                if cuts[name] == CUTS or name not in of_job or "train_cells" not in job.comment:
                    continue
                restarts, now = cluster.restarts(job), cluster.history_lines(*of_job[name])
                if restarts == cuts[name] and now > begun.setdefault((name, restarts), now):
                    # What SLURM does before it preempts a job: to the steps, not to the script.
                    cluster.slurm("scancel", "--signal=TERM", job.number)
                    cuts[name] += 1
    assert process.returncode == 0, cluster.log.read_text()[-5000:]
    assert cluster.outputs() == local.outputs()

    # The data, and two jobs for three stages of evaluation.
    jobs = cluster.jobs()
    assert {job.state for job in jobs} == {"COMPLETED"}
    trained = [job for job in jobs if "train_cells" in job.comment]
    assert len(jobs) == 1 + len(trained) + 2
    assert [cluster.restarts(job) for job in trained] == [CUTS] * len(of_job)
    for run_dir in (tmp_path / "slurm" / "results" / "runs").iterdir():
        logged = [
            json.loads(line)["step"]
            for line in (run_dir / "history.jsonl").read_text().splitlines()
        ]
        assert logged == list(range(5, steps + 1, 5))
