"""``new`` writes a folder in which an optimizer is tested, compared, studied and handed in."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from coupled_adam_bench.cli import main, parser
from coupled_adam_bench.study.settings import load_study


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "fast_ada"]) == 0
    return tmp_path / "fast_ada"


def test_all_files_have_its_name(folder, capsys):
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == {
        "README.md",
        "fast_ada.py",
        "test_fast_ada.py",
        "study.yaml",
        ".github/workflows/fast_ada.yml",
    }
    for name in names:
        text = (folder / name).read_text(encoding="utf-8")
        assert "FastAda" in text or name.endswith("README.md")
        assert not re.search(r"my_optimizer|MyOptimizer|NAdam|nadam|ADDRESS|CLONE", text), name
    assert [name for name in names if str(folder.name) in name or "." in name]


def test_its_own_test_passes(folder):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_fast_ada.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout


def test_its_study_is_that_of_submissions_with_its_optimizer(folder):
    study, shipped = load_study(folder / "study.yaml"), load_study(
        Path(__file__).parents[3] / "workflow" / "config" / "submission.yaml"
    )  # fmt: skip
    (block,), (there,) = study.grid, shipped.grid
    assert study.name == "fast_ada" and study.training == shipped.training
    assert [each.key for each in block.optimizers] == ["adamw", "coupled_adam", "fast_ada"]
    assert block.optimizers[2].path == "fast_ada.FastAda"
    assert block.tune.grids.keys() == {"adamw", "coupled_adam", "fast_ada"}
    assert (block.seeds, block.tokens) == (there.seeds, there.tokens)


def test_its_readme_leads_from_it_to_the_clone_and_has_commands_that_there_are(folder):
    page = (folder / "README.md").read_text(encoding="utf-8")
    (clone,) = re.findall(r"export BENCH=(.*)", page)
    assert (folder / clone / "Snakefile").is_file()
    workflow = (folder / ".github/workflows/fast_ada.yml").read_text(encoding="utf-8")
    steps = [
        step["run"] for step in yaml.safe_load(workflow)["jobs"]["bench"]["steps"] if "run" in step
    ]
    commands = [line for text in (page, *steps) for line in text.splitlines()]
    found = [line for line in commands if "-m coupled_adam_bench" in line and "`" not in line]
    assert len(found) >= 5
    for line in found:
        parser().parse_args(shlex.split(line.partition("-m coupled_adam_bench")[2]))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("My-Optimizer", "must be a name that a Python module can have"),
        ("torch", "a package of this name is installed"),
        ("adamw", "a name of the built-in optimizer adamw"),
        ("taken", "is there already"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(
    name, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    assert main(["new", name]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert not list((tmp_path / "taken").iterdir())
