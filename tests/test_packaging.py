"""What is installed: the wheels of both packages, and what make would run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import REPOSITORY

BUILT = shutil.ignore_patterns("*.egg-info", "build", "__pycache__")
LEFT_OUT = ("--no-deps", "--no-index", "--disable-pip-version-check")


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", *map(str, arguments), *LEFT_OUT]
    subprocess.run(command, check=True)


def test_the_wheels_are_whole_and_import(tmp_path: Path) -> None:
    source, wheels, target = (tmp_path / name for name in ("source", "wheels", "target"))
    # pip builds inside the folder, so it gets a copy.
    for folder in ("src", "packages"):
        shutil.copytree(REPOSITORY / folder, source / folder, ignore=BUILT)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / file, source)
    folders = [source, source / "packages/coupled-adam"]
    pip("wheel", "--no-build-isolation", "-w", wheels, *folders)
    pip("install", "--target", target, *sorted(wheels.glob("*.whl")))
    for folder in folders:
        kept = [path for path in (folder / "src").rglob("*") if path.suffix in (".py", ".typed")]
        assert kept
        for path in kept:
            assert (target / path.relative_to(folder / "src")).is_file(), path
    code = (
        "import coupled_adam_bench.cli; from coupled_adam import CoupledAdam;"
        "from coupled_adam_bench import compare; from coupled_adam_bench.optim import CoupledAdam;"
        "print(coupled_adam_bench.__file__)"
    )
    environment = os.environ | {"PYTHONPATH": str(target)}
    command = [sys.executable, "-c", code]
    found = subprocess.check_output(command, cwd=tmp_path, env=environment, text=True)
    assert Path(found.strip()).is_relative_to(target)


@pytest.mark.parametrize("goal", ["help", "install", "demo", "test", "test-gpu", "lint"])
def test_make_has_its_goals(goal: str) -> None:
    done = subprocess.run(["make", "-n", goal], cwd=REPOSITORY, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
