"""The scripts of findings/: each says what it guessed, pins what it installs and has its line."""

import os
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "findings"
SCRIPTS = sorted(FOLDER.glob("*.sh"))


def packages_of(script: str) -> list[str]:
    """Return what a script installs, with pins."""
    (packages,) = re.findall(r"/bin/pip\" install --quiet (.+)$", script, re.MULTILINE)
    return packages.split()


def test_each_script_has_a_line_and_each_line_a_script():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert named == [path.stem for path in SCRIPTS]
    assert len(named) >= 10


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_says_its_guess_and_pins_its_packages(path):
    script = path.read_text(encoding="utf-8")
    comment = " ".join(re.findall(r"^# (.*)$", script.partition("\nset -")[0], re.MULTILINE))
    assert re.search(r" Guess: .+ Sure: \d+ %\. Who meets it: .", comment)
    assert re.search(r" Versions: .+ Seen on \d{4}-\d\d-\d\d ", comment)
    packages = packages_of(script)
    assert all(re.fullmatch(r"[\w-]+==[\w.]+", package) for package in packages)
    for package in packages:
        assert package.replace("==", " ") in comment
    assert "trap 'rm -rf \"$folder\"' EXIT" in script
    assert "coupled" not in " ".join(packages)
    assert os.access(path, os.X_OK)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_line_names_the_version_of_its_script(path):
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    (version,) = re.findall(rf"^\| `{path.stem}` \| .+ \| (\S+ \S+) \| .+ \|$", page, re.MULTILINE)
    assert version.replace(" ", "==") in packages_of(path.read_text(encoding="utf-8"))
