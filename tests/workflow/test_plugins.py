"""What docs/plugins.md says, done by a study that begins as that of docs/howto.md."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import yaml
from starts import finish, snakemake

DOCS = Path(__file__).parents[2] / "docs"


def files_of(page: str) -> dict[str, str]:
    """Return the blocks of a page that are files, by the name in their first line."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return dict(re.findall(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", text, re.M | re.S))


FILES = files_of("plugins.md")


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def write_study(folder: Path, with_measurement: bool = True) -> None:
    settings = yaml.safe_load(files_of("howto.md")["study.yaml"])
    brought = yaml.safe_load(FILES["study.yaml"])
    for section in ("paths", "data", "models", "training", "evaluation"):
        settings[section] = brought[section]
    settings["tables"]["mine"]["columns"] = ["loss"]
    settings["grid"][0] |= {"optimizers": ["adamw", "coupled_adam"], "seeds": [1, 2]}
    if with_measurement:
        settings["execution"] |= brought["execution"]
        settings["statistics"] = brought["statistics"]
    folder.mkdir(exist_ok=True)
    (folder / "study.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    for file in ("my_parts.py", "my_plug_ins.py", "make_tokenizer.py"):
        (folder / file).write_text(FILES[file], encoding="utf-8")
    subprocess.run([sys.executable, "make_tokenizer.py"], cwd=folder, check=True)


def histories(folder: Path) -> dict[str, list[dict[str, float]]]:
    found = {}
    for path in folder.glob("results/runs/*/history.jsonl"):
        lines = path.read_text(encoding="utf-8").splitlines()
        found[path.parent.name] = [json.loads(line) for line in lines]
    return found


def test_the_plug_ins_of_the_page(tmp_path):
    write_study(tmp_path / "with")
    finish(tmp_path / "with", "report")
    study = tmp_path / "with/results/geometry"
    found = histories(tmp_path / "with")
    last = {name: history[-1]["gradient.log_norm"] for name, history in found.items()}
    csv = [float(row["log_norm"]) for row in rows(study / "last_gradient.csv")]
    assert sorted(csv) == sorted(last.values())
    assert {path.name for path in (study / "figures").glob("gradients.*")} == {
        f"gradients.{ending}" for ending in ("svg", "pdf", "column.pdf")
    }
    page = (study / "report/index.html").read_text(encoding="utf-8")
    assert "Gradients at the end" in page and "the embedding's gradient against" in page.replace(
        "&#39;", "'"
    )

    # Another file of the plug-ins makes the report again, and trains nothing.
    assert "Nothing to be done" in finish(tmp_path / "with", "report", "-n")
    code = tmp_path / "with/my_plug_ins.py"
    code.write_text(FILES["my_plug_ins.py"].replace("log norm", "log of the norm"))
    announced = finish(tmp_path / "with", "report", "-n")
    assert "rule report_of_study:" in announced and "rule train_cells:" not in announced

    # Without those that may not change a run there are the same cells, with the same bits.
    write_study(tmp_path / "without", with_measurement=False)
    finish(tmp_path / "without", "train")
    plain = histories(tmp_path / "without")
    assert {name: [row["loss"] for row in plain[name]][-1] for name in plain} == {
        name: [row["loss"] for row in found[name]][-1] for name in found
    }


def test_a_wrong_plug_in_stops_the_start(tmp_path):
    write_study(tmp_path)
    code = FILES["my_plug_ins.py"].replace("def draw(", "def drawn(")
    (tmp_path / "my_plug_ins.py").write_text(code, encoding="utf-8")
    started = snakemake(tmp_path, "report")
    assert started.returncode != 0
    assert (
        "statistics.figures.0.path: my_plug_ins.Gradients lacks the method `draw`" in started.stdout
    )
    assert not (tmp_path / "results/runs").exists()
