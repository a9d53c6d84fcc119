"""A whole study on a real SLURM cluster through the shipped profile gives the tables of a local run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def test_a_study_on_slurm_gives_the_tables_of_the_local_run(slurm_cluster, tiny_study, tmp_path):
    pytest.importorskip("snakemake_executor_plugin_slurm")
    settings = tiny_study()
    settings["grid"][0]["seeds"] = [1, 2]
    settings["execution"] |= {"train_mem_mb": 2000, "evaluation_mem_mb": 2500}
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump(settings))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SNAKEMAKE", "SLURM"))}
    command = [sys.executable, "-m", "snakemake", "--cores", "all", "--configfile", study]
    for place, flags in (
        ("local", []),
        ("slurm", ["--profile", "slurm", "--slurm-init-seconds-before-status-checks", "1"]),
    ):
        result = subprocess.run(
            [*command, *flags, "--directory", tmp_path / place],
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
    for name in ("results.csv", "tests.csv", "tables/table1.tex", "tables/table1.html"):
        local, cluster = (tmp_path / place / "results" / "tiny" / name for place in ("local", "slurm"))
        assert local.read_bytes() == cluster.read_bytes(), name
