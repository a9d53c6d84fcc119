"""The target ``rehearse`` through real Snakemake: it prints its table, and leaves nothing among the
results."""

import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SNAKEMAKE = [
    str(Path(sys.executable).with_name("snakemake")),
    "--snakefile",
    str(ROOT / "Snakefile"),
    "--nocolor",
]


# tests/unit/tools/rehearsal does the same by the command that the target calls
@pytest.mark.nightly
def test_the_target_rehearse(tiny_study, tmp_path):
    settings = tiny_study()
    settings["grid"][0]["seeds"] = [1, 2]
    settings["execution"] |= {"train_processes": 2, "parallel": "fsdp"}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(settings))
    command = [*SNAKEMAKE, "rehearse", "--cores", "1", "--configfile", "study.yaml"]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "and nothing was found" in result.stdout
    assert {path.name for path in (tmp_path / "results" / "tiny").iterdir()} <= {
        "plan.json",
        ".lock",
    }
    assert {path.name for path in (tmp_path / "results").iterdir()} == {"tiny"}


@pytest.mark.nightly
def test_a_rehearsal_takes_what_its_page_says(tmp_path):
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    said = float(re.search(r"For `paper_small` it takes (\d+) CPU seconds", page)[1])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    study = ROOT / "workflow" / "config" / "paper_small.yaml"
    command = [*SNAKEMAKE, "rehearse", "--cores", "1", "--configfile", str(study)]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert said / 2 < taken < 2 * said
