"""The SLURM profile on a real cluster: resources arrive, failed jobs are retried, and training is
warned of its end."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from coupled_adam_bench.study.catalogue.stages import STAGES

pytestmark = pytest.mark.xdist_group("slurm")  # one cluster, in one worker
ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "slurm" / "config.yaml"

# The resources of rules/train.smk and rules/evaluate.smk, with jobs that say what they were given.
SNAKEFILE = """
PYTHON = {python!r}

rule all:
    input: "train_cells.out", "test_loss.out", "embeddings.out", "downstream.out"

for name, gpu, minutes in (("train_cells", 1, 1), ("test_loss", 1, 5), ("embeddings", 0, 5), ("downstream", 0, 5)):
    rule:
        name: name
        output: name + ".out"
        params: name=name
        threads: 2
        resources:
            mem_mb=1000, gpu=gpu, runtime=minutes
        shell: "{{PYTHON}} job.py {{params.name}} {{threads}}"
"""
JOB = """
import os, pathlib, signal, subprocess, sys, time
from coupled_adam_bench.machine.requeue import stop_before_the_limit

name, threads = sys.argv[1:]
attempts = pathlib.Path(name + ".attempts")
given = [os.environ.get(variable, "-") for variable in ("SLURM_CPUS_PER_TASK", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID")]
shown = subprocess.run(["scontrol", "show", "job", given[2]], capture_output=True, text=True, check=True).stdout
given.append(next(fact for fact in shown.split() if fact.startswith("Nice=")))
with attempts.open("a") as file:
    print(threads, *given, file=file)
first = len(attempts.read_text().splitlines()) == 1

def checkpoint(number, frame):
    pathlib.Path(name + ".checkpoint").touch()
    sys.exit(75)

signal.signal(signal.SIGTERM, checkpoint)
if name == "train_cells":
    stop_before_the_limit(35)
if name == "train_cells" and first:
    time.sleep(120)  # longer than the job's time limit of a minute
if name == "test_loss" and first:
    sys.exit(1)
pathlib.Path(name + ".out").touch()
"""


def with_site_settings(profile: str) -> str:
    """Return the profile as a site edits it: the commented lines in force, with the names of the
    test's cluster."""
    edited = re.sub(r"^# (set-resources:|  \w+: \{.*\})$", r"\1", profile, flags=re.MULTILINE)
    return edited.replace("slurm_partition: gpu", "slurm_partition: main").replace("a100", "fake")


def test_the_profile_sets_what_rules_of_ours_use():
    rules = "\n".join(
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "rules").glob("*.smk"))
    )
    site = yaml.safe_load(with_site_settings(PROFILE.read_text(encoding="utf-8")))
    bodies = re.findall(r"^rule (\w+):\n((?:    .*\n|\n)+)", rules, re.MULTILINE)
    on_gpu = {name for name, body in bodies if "gpu=" in body}
    # The stages share one rule without a name in the file.
    on_gpu |= {stage.name for stage in STAGES.values() if stage.gpu}
    assert "train_cells" in on_gpu
    assert set(site["set-resources"]) == on_gpu


def test_no_rule_takes_the_options_of_the_site():
    rules = "\n".join(
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "rules").glob("*.smk"))
    )
    assert "slurm_extra" not in rules


def test_stages_of_the_same_cells_are_one_job():
    slurm = yaml.safe_load(PROFILE.read_text(encoding="utf-8"))
    (group,) = set(slurm["groups"].values())
    assert slurm["group-components"] == {group: len(slurm["groups"])}
    assert slurm["resources"] == {"turn": 1}
    assert set(slurm["groups"]) == {stage.name for stage in STAGES.values() if stage.gpu}


@pytest.mark.parametrize("name", ["gpus", "lsf"])
def test_other_profiles_name_rules_of_ours(name):
    profile = yaml.safe_load((ROOT / "profiles" / name / "config.yaml").read_text(encoding="utf-8"))
    rules = "\n".join(
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "rules").glob("*.smk"))
    )
    for rule in profile.get("set-resources", {}):
        assert rule in STAGES or re.search(rf"^rule {rule}\b", rules, re.MULTILINE), rule


def test_the_default_profile_leaves_the_cluster_alone():
    default = yaml.safe_load(
        (ROOT / "profiles" / "default" / "config.yaml").read_text(encoding="utf-8")
    )
    slurm = yaml.safe_load(PROFILE.read_text(encoding="utf-8"))
    assert "code" not in default["rerun-triggers"]
    assert not {"default-resources", "set-resources", "jobs", "cores", "retries", "executor"} & set(
        default
    )
    assert all(slurm[key] == value for key, value in default.items() if key in slurm)


@pytest.mark.fault(
    "cluster",
    "A site has options of its own for `sbatch`, for all jobs (`default-resources`) or for those of"
    " a rule.",
    "They arrive, and training stops before its time limit all the same.",
)
def test_jobs_get_their_resources_retries_and_warnings(slurm_cluster, tmp_path):
    pytest.importorskip("snakemake_executor_plugin_slurm")
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    (tmp_path / "slurm").mkdir()
    profile = yaml.safe_load(with_site_settings(PROFILE.read_text(encoding="utf-8")))
    del (
        profile["groups"],
        profile["group-components"],
    )  # here each rule is a job; test_pipeline.py has the groups
    profile["default-resources"]["slurm_extra"] = "'--nice=7'"
    profile["set-resources"]["test_loss"]["slurm_extra"] = "'--nice=8'"
    (tmp_path / "slurm" / "config.yaml").write_text(yaml.safe_dump(profile), encoding="utf-8")
    (tmp_path / "Snakefile").write_text(SNAKEFILE.format(python=sys.executable), encoding="utf-8")
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")

    command = [sys.executable, "-m", "snakemake", "--profile", "slurm", "--cores", "2"]
    command += ["--slurm-init-seconds-before-status-checks", "1"]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SNAKEMAKE", "SLURM"))
    }
    result = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment | slurm_cluster,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-5000:]

    attempts = {
        path.stem: [line.split() for line in path.read_text().splitlines()]
        for path in tmp_path.glob("*.attempts")
    }
    # One retry each for the job that failed and the one that reached its time limit, a cluster job
    # of its own.
    assert {name: len(rows) for name, rows in attempts.items()} == {
        "train_cells": 2,
        "test_loss": 2,
        "embeddings": 1,
        "downstream": 1,
    }
    assert len({row[3] for rows in attempts.values() for row in rows}) == 6
    assert (tmp_path / "train_cells.checkpoint").exists()
    assert not (tmp_path / "test_loss.checkpoint").exists()
    for name, rows in attempts.items():
        gpu = "0" if name in ("train_cells", "test_loss") else "-"
        assert [row[:3] for row in rows] == [["2", "2", gpu]] * len(rows), name
        assert {row[4] for row in rows} == {"Nice=8" if name == "test_loss" else "Nice=7"}, name
