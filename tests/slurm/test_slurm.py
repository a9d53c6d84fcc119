"""Training on a real SLURM by the shipped profile: a cancelled job, and a time limit, go on."""

import json
import os
import shutil
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from tiny import REPOSITORY, tiny_study

STEPS = 600
# SLURM looks at time limits every 30 seconds, and warns up to a minute earlier than it is told to.
# So a job of two minutes gets SIGTERM when it is 55 to 85 seconds old.
MINUTES, WARNING_SECONDS, PAUSE = 2, 5, 0.15
OWN = """
import os, time, torch

class Slow(torch.optim.AdamW):
    def step(self, closure=None):
        time.sleep(float(os.environ.get("PAUSE", 0)))
        return super().step(closure)
"""


def weights(folder: Path) -> dict[str, str]:
    """Return the digests of all trained models."""
    files = folder.glob("results/runs/*/model/model.safetensors")
    return {file.parts[-3]: sha256(file.read_bytes()).hexdigest() for file in files}


def cancel(batch: str, cluster: dict[str, str]) -> bool:
    """Cancel the job of a batch, which its comment names, and tell whether there was one."""
    listed = subprocess.run(
        ["squeue", "-h", "-o", "%i %k"], env=cluster, capture_output=True, text=True, check=True
    )
    for line in listed.stdout.splitlines():
        if batch in line:
            subprocess.run(["scancel", line.split()[0]], env=cluster, check=True)
            return True
    return False


@pytest.mark.timeout(1200)
@pytest.mark.xdist_group("slurm")
def test_a_cancelled_job_and_a_time_limit_go_on(
    finished: Path, cluster: dict[str, str], tmp_path: Path
) -> None:
    study = tiny_study()
    own = {"name": "custom", "path": "own.Slow", "key": "slow", "label": "Slow"}
    block = {"models": ["small"], "tokens": [{"steps": STEPS}], "optimizers": [own]}
    study["grid"] = [block | {"seeds": [1, 2]}]
    study["execution"] |= {
        "train_cells_per_job": 1,
        "train_minutes": MINUTES,
        "train_mem_mb": 2000,
        "checkpoint_every": STEPS,  # only a signal writes one before
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    (tmp_path / "own.py").write_text(OWN)
    # Data and trial are those of the finished study: this is about training.
    shutil.copytree(finished / "results/data", tmp_path / "results/data")
    (tmp_path / "results/tiny").mkdir()
    shutil.copy2(finished / "results/tiny/tried.json", tmp_path / "results/tiny")
    command = [
        *(sys.executable, "-m", "snakemake", "train", "--profile", str(REPOSITORY / "slurm")),
        *("--snakefile", str(REPOSITORY / "Snakefile"), "--configfile", "study.yaml"),
        *("--set-resources", f"train_cells:slurm_extra='--signal=TERM@{WARNING_SECONDS}'"),
        *("--slurm-init-seconds-before-status-checks", "1"),
    ]
    runs = tmp_path / "results/runs"
    cancelled = False
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            command, cwd=tmp_path, env=cluster | {"PAUSE": str(PAUSE)}, stdout=log, stderr=log
        ) as snakemake,
    ):
        try:
            while snakemake.poll() is None:
                time.sleep(0.5)
                begun = [file.read_text() for file in runs.glob("*_s1_*/history.jsonl")]
                if any(begun) and not cancelled:
                    cancelled = cancel("batch-000", cluster)
        finally:
            snakemake.kill()
    said = (tmp_path / "log").read_text()
    assert snakemake.returncode == 0, said
    assert said.count("Trying to restart job") >= 2, said
    for file in runs.glob("*/history.jsonl"):
        steps = [json.loads(line)["step"] for line in file.read_text().splitlines()]
        assert steps == sorted({*steps})
        assert steps[-1] == STEPS

    on_slurm = weights(tmp_path)
    assert len(on_slurm) == 2
    shutil.rmtree(tmp_path / "results/runs")
    plan = ["--plan", "results/tiny/plan.json", "--cells", *on_slurm]
    train = [sys.executable, "-m", "coupled_adam_bench", "train", *plan]
    subprocess.run(train, cwd=tmp_path, check=True, env=os.environ)
    assert weights(tmp_path) == on_slurm
