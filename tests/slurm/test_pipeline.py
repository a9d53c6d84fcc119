"""A study on a real SLURM cluster through the shipped profile gives the tables of a local run."""

import json
import os
import subprocess
import sys
import time

import pytest
import yaml
from finished import ROOT, outputs, small, write

pytestmark = pytest.mark.xdist_group("slurm")  # one cluster, in one worker


def test_a_study_on_slurm_gives_the_tables_of_the_local_run(slurm_cluster, tiny_study, finished, tmp_path):
    pytest.importorskip("snakemake_executor_plugin_slurm")
    settings = small(tiny_study())
    settings["execution"] |= {"train_cells_per_job": 2, "train_mem_mb": 2000, "evaluation_mem_mb": 2500}
    write(tmp_path, settings)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SNAKEMAKE", "SLURM"))}
    command = [sys.executable, "-m", "snakemake", "--cores", "all", "--configfile", tmp_path / "study.yaml"]
    command += ["--profile", "slurm", "--slurm-init-seconds-before-status-checks", "1", "--directory", tmp_path]
    result = subprocess.run(
        [*command, "tables"],  # what follows runs where Snakemake runs
        cwd=ROOT,  # where `--profile slurm` finds the profile
        env=environment | slurm_cluster,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-5000:]
    assert "SLURM" in result.stdout
    assert outputs(tmp_path) == outputs(finished)


@pytest.mark.nightly
def test_a_training_job_of_two_processes_that_is_warned_goes_on_in_its_retry(slurm_cluster, tiny_study, tmp_path):
    pytest.importorskip("snakemake_executor_plugin_slurm")
    settings = tiny_study()
    settings["grid"][0] |= {"table": None, "optimizers": ["coupled_adam"], "tokens": [{"steps": 600}], "seeds": [1]}
    settings["execution"] |= {
        "train_processes": 2,
        "parallel": "fsdp",
        "checkpoint_every": 100_000,
        "train_mem_mb": 4000,
    }
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump(settings))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SNAKEMAKE", "SLURM"))}
    environment |= slurm_cluster
    command = [sys.executable, "-m", "snakemake", "--cores", "all", "--configfile", study, "--profile", "slurm"]
    command += ["--slurm-init-seconds-before-status-checks", "1", "--directory", tmp_path, "train"]
    log = tmp_path / "snakemake.log"
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 300
    while not (histories := [path for path in tmp_path.glob("results/runs/*/history.jsonl") if path.stat().st_size]):
        assert process.poll() is None, log.read_text()[-5000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    jobs = subprocess.run(
        ["squeue", "-h", "-t", "RUNNING", "-o", "%A"], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    # What `--signal=TERM@120` does two minutes before the time limit: to the steps, not to the batch script.
    subprocess.run(["scancel", "--signal=TERM", *jobs], env=environment, check=True)
    assert process.wait(400) == 0, log.read_text()[-5000:]
    run_dir = histories[0].parent
    assert json.loads((run_dir / "run.json").read_text())["train"]["processes"] == 2
    final, stopped = sorted((path.name for path in (run_dir / "checkpoints").iterdir()), reverse=True)
    assert final == "step-00000600"
    assert stopped > "step-00000000"
    steps = [json.loads(line)["step"] for line in histories[0].read_text().splitlines()]
    assert steps == list(range(5, 601, 5))
