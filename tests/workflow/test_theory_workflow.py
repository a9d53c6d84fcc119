"""The rule ``theory`` through real Snakemake."""

import json
from pathlib import Path

import pytest
import yaml
from starts import finish

from coupled_adam_bench.study.catalog.stages import STAGES

DONE, RESULTS = "results/tiny/evaluation/batch-000.theory.done", "results/tiny/results.csv"


def to_run(folder: Path, target: str) -> set[str]:
    """Return the rules that a dry run announces."""
    lines = finish(folder, target, "-n").splitlines()
    return {
        line.split()[1].rstrip(":") for line in lines if line.startswith(("rule ", "localrule "))
    }


@pytest.fixture
def study(tiny_study):
    """A study of one cell, tied, with the theory."""
    settings = tiny_study()
    block = {
        "models": ["nano"],
        "tokens": [{"steps": 8}],
        "optimizers": ["coupled_adam"],
        "seeds": [1],
    }
    evaluation = settings["evaluation"] | {"theory": {"n_batches": 2, "record_every": 4}}
    return settings | {"grid": [block], "evaluation": evaluation}


def test_the_rule_runs_and_only_what_it_measures_reruns_it(study, tmp_path):
    def write() -> None:
        (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))

    theory = study["evaluation"].pop("theory")
    write()
    stages = {"prepare", "train_cells", *STAGES, "report_of_study"} - {"theory"}
    assert to_run(tmp_path, RESULTS) == stages
    study["evaluation"]["theory"] = theory
    write()
    assert to_run(tmp_path, RESULTS) == {*stages, "theory"}
    finish(tmp_path, DONE)
    (run,) = (tmp_path / "results/runs").iterdir()
    (file,) = (run / "evaluations").glob("theory-*.json")
    assert json.loads(file.read_text())["drift"]["embedding"]["step"] == [4, 8]
    theory["replay_tolerance"] = 0.5
    write()
    assert to_run(tmp_path, RESULTS) == stages - {"prepare", "train_cells"}
    theory["n_batches"] = 3
    write()
    assert to_run(tmp_path, DONE) == {"theory"}
