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
HEAVY = {"torch", "transformers", "datasets", "lm_eval", "snakemake", "mlflow", "matplotlib", "jinja2"}

STATISTICAL = {"numpy", "pandas", "scipy", "scipy.stats", "statsmodels"}
RESULTS = ("--results", "results/tiny/results.csv")


@pytest.mark.parametrize(
    ("stage", "options", "out", "may_load"),
    [
        ("collect", (), "results.csv", {"numpy", "pandas"}),
        ("tests", RESULTS, "tests.csv", STATISTICAL),
        ("statistics", RESULTS, ".", STATISTICAL),
        ("tables", (*RESULTS, "--tests", "results/tiny/tests.csv"), "tables", {*STATISTICAL, "jinja2"}),
        ("figures", (*RESULTS, "--noise", "results/tiny/noise.csv"), "figures", {*STATISTICAL, "matplotlib"}),
        ("track", ("--uri", "sqlite:///{}/new.db"), "mlflow.json", {"numpy", "pandas", "scipy", "mlflow"}),
    ],
)
def test_a_job_loads_only_what_it_needs(
    finished: Path, tmp_path: Path, stage: str, options: tuple[str, ...], out: str, may_load: set[str]
) -> None:
    libraries = ",".join(sorted((HEAVY | STATISTICAL) - may_load))
    arguments = [option.format(tmp_path) for option in options]
    if stage == "tables":
        arguments += ["--templates", str(Path(__file__).parents[2] / "templates")]
    command = [stage, "--plan", "results/tiny/plan.json", *arguments, "--out", str(tmp_path / out)]
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, libraries, *command], cwd=finished, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[]"
