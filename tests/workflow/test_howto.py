"""What docs/howto.md says, done: a study of one's own, and changes of the code in a copy of the
project."""

import csv
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from forks import python
from safetensors.numpy import load_file
from starts import finish, make_tables, snakemake

ROOT = Path(__file__).parents[2]
HOWTO = (ROOT / "docs" / "howto.md").read_text(encoding="utf-8")
ADDITIONS = ROOT / "docs" / "examples" / "additions"
"""New files that the page links to; the first line of each says where it goes."""


def files() -> dict[str, str]:
    """Return the blocks that are files, and the files that the page links to, by the name in their
    first line."""
    found = dict(
        re.findall(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", HOWTO, re.MULTILINE | re.DOTALL)
    )
    for file in ADDITIONS.glob("*.py"):
        assert f"(examples/additions/{file.name})" in HOWTO
        place, _, text = file.read_text(encoding="utf-8").partition("\n")
        found[place.removeprefix("# ")] = text
    return found


def changes() -> list[str]:
    """Return the blocks that are changes of files."""
    return re.findall(r"^```diff\n(.*?)^```$", HOWTO, re.MULTILINE | re.DOTALL)


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_a_metric_and_a_table_of_a_study_s_own_without_code_of_this_project(tmp_path):
    blocks = files()
    for name in ("my_metrics.py", "study.yaml"):
        (tmp_path / name).write_text(blocks[name], encoding="utf-8")
    finish(tmp_path, "evaluate")
    make_tables(tmp_path, "geometry")
    study = tmp_path / "results/geometry"

    found = rows(study / "results.csv")
    before = {row["cell"]: float(row["value"]) for row in found if row["metric"] == "top_share"}
    assert len(before) == 6
    assert all(0 <= value <= 1 for value in before.values())
    assert {row["metric"] for row in rows(study / "tests.csv")} == {"loss", "isotropy", "top_share"}
    table = (study / "tables/mine.tex").read_text()
    assert "share" in table and r"\mathrm{Acc}" not in table
    assert "Nothing to be done" in finish(tmp_path, "evaluate", "-n")

    def evaluations() -> list[Path]:
        return [*tmp_path.glob("results/runs/*/evaluations/embeddings-*.json")]

    # A change of the function's file measures again, and trains nothing.
    changed = blocks["my_metrics.py"].replace(".sum()", ".sum() + 0.5")
    (tmp_path / "my_metrics.py").write_text(changed, encoding="utf-8")
    announced = finish(tmp_path, "-n")
    assert "rule embeddings:" in announced and "rule train_cells:" not in announced
    measured = {*evaluations()}
    finish(tmp_path, "evaluate")
    records = [json.loads(path.read_text()) for path in {*evaluations()} - measured]
    after = {
        record["cell"]: row["value"]
        for record in records
        for row in record["results"]
        if row["metric"] == "top_share"
    }
    assert after == {cell: value + 0.5 for cell, value in before.items()}


LISTS = (
    "tests/unit/test_declared_lists.py",
    "tests/unit/results/test_collect.py",
    "tests/unit/study/settings/test_optimizers.py",
    "tests/unit/study/settings/test_schema.py",
    "tests/unit/study/settings/test_contexts_study.py",
    "packages/embedding-geometry/tests/test_examples.py",
)
"""Tests that go through what is declared, in seconds."""
BY_NAME = (
    "tests/unit/models/test_export.py",
    "tests/unit/optim",
    "tests/unit/tools/estimate/test_memory.py",
)
"""Tests of each optimizer and of each model family; those of the additions take seconds."""


def sources(project: Path) -> str:
    """Return the folders of code that additions change, for PYTHONPATH."""
    return f"{project / 'src'}{os.pathsep}{project / 'packages/embedding-geometry/src'}"


def changed_project(project: Path) -> None:
    """Make a copy of the project with all additions, as the page says."""
    copied = (
        "Snakefile",
        "rules",
        "templates",
        "workflow",
        "profiles",
        "src",
        "packages",
        "docs",
        "tests",
        "research",
    )
    for name in (*copied, "pyproject.toml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        project.mkdir(exist_ok=True)
        copy(ROOT / name, project / name)
    for change in changes():
        apply = ["git", "apply", "-"]
        subprocess.run(apply, cwd=project, input=change, text=True, check=True)
    for name, text in files().items():
        if name.startswith("src/"):
            (project / name).write_text(text, encoding="utf-8")
    do(project, "coupled_adam_bench", "schema", "--out", str(project / "workflow/schemas"))


def do(project: Path, module: str, *arguments: str) -> None:
    """Run a command with the code of a project; it must end well."""
    environment = os.environ | {"PYTHONPATH": sources(project)}
    process = python("pipeline", ["-m", module, *arguments], project, environment)
    said, errors = process.communicate(timeout=600)
    assert process.returncode == 0, said + errors


def test_additions_to_the_code_for_everybody(tmp_path, monkeypatch):
    touched = [set(re.findall(r"^\+\+\+ b/(\S+)$", change, re.MULTILINE)) for change in changes()]
    new = {name for name in files() if name.startswith("src/")}
    # A figure and a stage with a module; an optimizer, a family and a statistic, each with a
    # module, and a metric.
    assert sorted(len(one) for one in touched) == [1, 2, 2, 2, 3, 4]
    assert {Path(name).parent.name for name in new} == {
        "optimizers",
        "models",
        "evaluation",
        "statistics",
    }
    project = tmp_path / "project"
    changed_project(project)
    lists = [Path(name).stem for name in LISTS]
    options = ["-q", "-n", "0", "-p", "no:cacheprovider"]
    options += ["-k", " or ".join(["llama", "adagrad", *lists])]
    do(project, "pytest", *options, *LISTS, *BY_NAME)
    files_of_code = {name for names in touched for name in names if name.endswith(".py")}
    for check in (["check"], ["format", "--check"]):
        do(project, "ruff", *check, "--no-cache", *sorted(new | files_of_code))
    assert "Adagrad" in (project / "workflow/schemas/study.schema.json").read_text(encoding="utf-8")

    settings = yaml.safe_load(files()["study.yaml"])
    del settings["evaluation"]["metrics"]
    settings["tables"]["mine"]["columns"] = ["loss", "largest_length"]
    settings["grid"][0]["optimizers"] = ["adamw", "coupled_adam", "adagrad"]
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "study.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", sources(project))
    made = snakemake(folder, "tables", "figures", snakefile=str(project / "Snakefile"))
    assert made.returncode == 0, made.stdout
    study = folder / "results/geometry"
    found = rows(study / "results.csv")
    whole = [
        row for row in found if not row["task"].startswith("embeddings_")
    ]  # not of a part of the rows
    values = {(row["cell"], row["metric"]): float(row["value"]) for row in whole}
    cells = {row["cell"]: row["optimizer"] for row in found}
    assert sorted(cells.values()) == 2 * ["adagrad"] + 2 * ["adamw"] + 2 * ["coupled_adam"]
    for cell in cells:
        model = folder / "results/runs" / cell / "model"
        assert (
            values[cell, "megabytes"] == sum(path.stat().st_size for path in model.iterdir()) / 1e6
        )
        embedding = load_file(model / "model.safetensors")["transformer.wte.weight"].astype(
            np.float64
        )
        assert values[cell, "largest_length"] == pytest.approx(
            np.linalg.norm(embedding, axis=1).max(), rel=1e-12
        )
    table = (study / "tables/mine.tex").read_text()
    assert "Adagrad" in table and r"\max" in table
    ranges = rows(study / "ranges.csv")
    assert [row["optimizer"] for row in ranges] == ["adamw", "coupled_adam", "adagrad"]
    losses = {cell: value for (cell, metric), value in values.items() if metric == "loss"}
    for row in ranges:
        own = [loss for cell, loss in losses.items() if cells[cell] == row["optimizer"]]
        assert float(row["range"]) == pytest.approx(max(own) - min(own))
    assert "The range is the largest loss" in (study / "report/index.html").read_text()
    drawn = {path.name for path in (study / "figures").glob("words.*")}
    assert drawn == {"words.svg", "words.pdf", "words.column.pdf"}
