"""What the jobs of reporting load: most of what such a job takes is imports."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from coupled_adam_bench.cli import main
status = main(sys.argv[2:])
print([library for library in sys.argv[1].split(",") if library in sys.modules])
sys.exit(status)
"""
HEAVY = {
    "torch",
    "transformers",
    "datasets",
    "lm_eval",
    "snakemake",
    "mlflow",
    "matplotlib",
    "jinja2",
    "statsmodels",
}
NUMERICAL = {"numpy", "pandas", "scipy"}
STATISTICAL = {*NUMERICAL, "scipy.stats"}
REPORT = ("report", "--svg-only", "--templates", str(Path(__file__).parents[2] / "templates"))


@pytest.mark.parametrize(
    ("command", "may_load"),
    [
        (REPORT, STATISTICAL | {"jinja2", "matplotlib"}),
        (("track", "--uri", "sqlite:///new.db", "--out", "mlflow.json"), NUMERICAL | {"mlflow"}),
    ],
)
def test_a_job_loads_only_what_it_needs(copy, command, may_load):
    libraries = ",".join(sorted((HEAVY | STATISTICAL) - may_load))
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, libraries, *command, "--plan", "results/tiny/plan.json"],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[]"
