"""The commands of docs/table1.md, line by line up to the first that needs a GPU, and what the page
says they print."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/table1.md").read_text(encoding="utf-8")
FIRST_GPU_LINE = "snakemake --cores all --profile slurm"
BLOCKS = re.findall(r"^```(bash)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
INSTALLED = "make install && source .venv/bin/activate\n"
"""What the tests have done already."""


def steps() -> list[tuple[str, list[str]]]:
    """Return each block of commands before the first GPU line, and the lines that the page shows
    after it."""
    found: list[tuple[str, list[str]]] = []
    for kind, text in BLOCKS:
        if FIRST_GPU_LINE in text:
            return found
        if kind == "bash":
            found.append((text.removeprefix(INSTALLED), []))
        else:
            found[-1][1].extend(text.splitlines())
    raise AssertionError(f"docs/table1.md has no line that begins with {FIRST_GPU_LINE!r}")


def run(commands: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",  # the test downloads nothing, wherever it runs
        "https_proxy": "http://127.0.0.1:9",
    }
    command = ["bash", "-euo", "pipefail", "-c", commands]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False
    )


def assert_said(lines: list[str], said: str) -> None:
    for line in lines:
        pattern = ".*".join(re.escape(part) for part in line.split("..."))
        # The time in seconds is that of the machine which the page was written on.
        pattern = re.sub(r"\\\(\d+\\ s\\\)", r"\\(\\d+ s\\)", pattern)
        assert re.search(pattern, said), f"the page shows\n{line}\nbut this was said:\n{said}"


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """Return a copy of what a clone has that these commands read."""
    folder = tmp_path_factory.mktemp("table 1") / "a clone"
    folder.mkdir()
    for name in ("Snakefile", "rules", "profiles", "slurm", "templates", "workflow"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, folder / name)
    return folder


# By day the rehearsal, half of the time, is that of a tiny study (tests/unit/tools/rehearsal).
@pytest.mark.parametrize("is_rehearsed", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_every_line_before_the_first_gpu_line_does_what_the_page_says(is_rehearsed, clone):
    found = steps()
    assert len(found) == 5
    for commands, shown in found:
        if commands.startswith("snakemake rehearse") and not is_rehearsed:
            continue
        done = run(commands, clone)
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == any(line.startswith("error:") for line in shown), said
        assert_said(shown, said)
