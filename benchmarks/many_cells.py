"""CPU time and memory of the report of a study with 10,000 cells, and of one whose cells have many
documents.

    python benchmarks/many_cells.py [--cells 10000] [--document-cells 54] [--documents 60000]

The report is made in a process of its own, as the workflow does. Its peak memory includes Python
and the libraries. The numbers are drawn, and cells have as many rows in ``results.csv`` as those of
the demo.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from coupled_adam_bench.records.kept import DOCUMENTS, Document, pack_documents
from coupled_adam_bench.records.stored import beside, measured_cells
from coupled_adam_bench.results.collect import results_frame
from coupled_adam_bench.results.tidy import write_csv
from coupled_adam_bench.store.files import write_sealed
from coupled_adam_bench.study.catalogue.metrics import METRICS
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.settings import parse_study

N_MODELS, N_SEEDS, OTHER_ROWS = 10, 3, 50
TEMPLATES = Path(__file__).parents[1] / "templates"


def plan_of(n_cells: int) -> Plan:
    """Return a plan of about as many cells: two optimizers, three seeds, ten models, and many
    lengths."""
    n_lengths = max(1, round(n_cells / (2 * N_SEEDS * N_MODELS)))
    models = [
        {
            "name": f"m{d}",
            "n_layer": 1,
            "n_head": 1,
            "d_model": 8 * d,
            "learning_rate": 0.01,
            "label": f"model {d}",
        }
        for d in range(1, N_MODELS + 1)
    ]
    block = {
        "table": "table1",
        "models": [model["name"] for model in models],
        "tokens": [
            {"steps": 100 + step, "label": f"{100 + step} steps"} for step in range(n_lengths)
        ],
        "optimizers": ["adamw", "coupled_adam"],
    }
    study: dict[str, Any] = {
        "study": "many",
        "data": {
            "name": "words",
            "source": {"kind": "synthetic"},
            "tokenizer": "word",
            "vocab_size": 1024,
        },
        "models": models,
        "training": {"seq_len": 32, "batch_sequences": 4, "warmup_steps": 5, "precision": "fp32"},
        "grid": [block],
        "evaluation": {"word_similarity": "synthetic", "downstream": {"tasks": "synthetic"}},
    }
    return make_plan(parse_study(study))


def write_drawn_results(plan: Plan, path: Path) -> None:
    """Write ``results.csv`` with every metric of the catalogue and as many other rows as a small
    study has."""
    rng = np.random.default_rng(0)
    columns = [(metric.task, metric.name, metric.unit) for metric in METRICS.values()]
    columns += [(f"task{number}", "acc", "1") for number in range(OTHER_ROWS - len(columns))]
    rows = (
        (cell, task, name, float(rng.uniform(0.4, 0.6)), unit)
        for cell in plan.cells.values()
        for task, name, unit in columns
    )
    write_csv(results_frame(plan, rows), path)


@cache
def drawn_documents(optimizer: str, seed: int, n_documents: int) -> bytes:
    """Return documents of seven tasks; cells that differ in nothing but the model have the same."""
    rng = np.random.default_rng([seed, len(optimizer)])
    scores = rng.normal(size=(n_documents, 4)).tolist()
    return pack_documents(
        Document(
            f"task{index % 7}", index, f"{index:016x}", 1, {"acc": float(right)}, scores[index]
        )
        for index, right in enumerate(rng.random(n_documents) < 0.4)
    )


def write_documents(plan: Plan, runs: Path, n_documents: int) -> None:
    """Write a run and documents for each cell of a plan."""
    for cell, measurements in measured_cells(plan, runs):
        run = {
            "cell": cell.id,
            "status": "completed",
            "reason": None,
            "step": cell.steps,
            "model_sha256": "ab" * 32,
            "data_sha256": {},
            "train": {},
            "environment": {},
        }
        write_sealed(runs / cell.id / "run.json", run)
        contents = drawn_documents(cell.optimizer.key, cell.seed, n_documents)
        (measurement,) = (each for each in measurements if each.stage.name == "downstream")
        path = measurement.find(cell.id)
        rows = [
            {"task": task, "metric": metric, "value": 0.5, "unit": unit}
            for task, metric, unit in measurement.columns
        ]
        record = {
            "cell": cell.id,
            "stage": "downstream",
            "status": "ok",
            "reason": None,
            "results": rows,
            "version": measurement.stage.version,
            "settings": measurement.settings,
            "model_sha256": "ab" * 32,
            "files": {DOCUMENTS: hashlib.sha256(contents).hexdigest()},
        }
        write_sealed(path, record)
        beside(path, DOCUMENTS).write_bytes(contents)


def time_report(folder: Path, name: str, *words: str) -> None:
    """Make the report in a process of its own, and print its CPU time, which other work does not
    change, and its peak memory."""
    code = (
        "import sys, resource; from coupled_adam_bench.cli import main;"
        "status = main(sys.argv[1:]);"
        "used = resource.getrusage(resource.RUSAGE_SELF);"
        "print(used.ru_utime + used.ru_stime, used.ru_maxrss); sys.exit(status)"
    )
    command = ["report", "--plan", "results/many/plan.json", "--templates", str(TEMPLATES), *words]
    run = subprocess.run(
        [sys.executable, "-c", code, *command],
        cwd=folder,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    seconds, kib = map(float, run.stdout.split()[-2:])
    print(f"| {name} | {seconds:.1f} | {kib / 1024:.0f} |", flush=True)


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cells", type=int, default=10_000)
    options.add_argument("--document-cells", type=int, default=54)
    options.add_argument("--documents", type=int, default=60_000)
    arguments = options.parse_args()
    print("| report of | CPU s | MiB |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder, study = Path(name), Path(name) / "results" / "many"
        plan = plan_of(arguments.cells)
        write_sealed(study / "plan.json", plan.to_json())
        drawn = folder / "drawn.csv"
        write_drawn_results(plan, drawn)
        lines = drawn.read_text().count("\n") - 1
        what = f"{len(plan.cells):,} cells, {lines:,} rows of results.csv"
        time_report(folder, what, "--results", str(drawn))
        small = plan_of(arguments.document_cells)
        write_sealed(study / "plan.json", small.to_json())
        write_documents(small, folder / "results" / "runs", arguments.documents)
        what = f"{len(small.cells)} cells with {arguments.documents:,} documents each"
        time_report(folder, what, "--partial")


if __name__ == "__main__":
    main()
