"""The target ``rehearse`` through real Snakemake: it prints its table, and leaves nothing among the
results."""

import re
import resource
import subprocess
from pathlib import Path

import pytest
from finished import ROOT, SNAKEMAKE, write


def rehearse(folder: Path, study: Path) -> str:
    """Run the target in a folder, which must end well, and return what it said."""
    command = [*SNAKEMAKE, "rehearse", "--cores", "1", "--configfile", str(study)]
    result = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=900, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


# tests/unit/tools/rehearsal does the same by the command that the target calls
@pytest.mark.nightly
def test_the_target_rehearse(tiny_study, tmp_path):
    settings = tiny_study()
    settings["grid"][0]["seeds"] = [1, 2]
    settings["execution"] |= {"train_processes": 2, "parallel": "fsdp"}
    write(tmp_path, settings)
    assert "and nothing was found" in rehearse(tmp_path, tmp_path / "study.yaml")
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
    rehearse(tmp_path, ROOT / "workflow" / "config" / "paper_small.yaml")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert said / 2 < taken < 2 * said
