"""Time and memory of imports into MLflow: of many finished cells, of the same again, and of one
more evaluation.

    python benchmarks/track.py [--cells 1000] [--points 200] [--study FILE.yaml] [--folder FOLDER]

The runs are drawn: loss falls with the logarithm of the step, and each cell has the evaluations of
its study. The files beside these are as large as those of the paper's seven tasks and of 10,000
windows. With ``--folder`` the runs stay there, to look at with ``mlflow ui --backend-store-uri
sqlite:///FOLDER/mlflow.db``.
"""

import argparse
import hashlib
import json
import resource
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from many_cells import plan_of

from coupled_adam_bench.models.export import model_card
from coupled_adam_bench.records.stored import Measurement, beside, measured_cells
from coupled_adam_bench.store.files import write_json, write_sealed, write_text
from coupled_adam_bench.study.catalogue.metrics import METRICS, Metric
from coupled_adam_bench.study.plan import Plan, make_plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import load_any_study
from coupled_adam_bench.tracking.importing import import_study

T0 = 1_790_000_000.0
BESIDE = {
    "test_loss": {"windows.csv.gz": 120_000},
    "embeddings": {"pairs.csv.gz": 13_000},
    "downstream": {"documents.jsonl.gz": 1_130_000},
}
"""The sizes in bytes of the files beside an evaluation, by stage and the ends of their names."""


def write_run(cell: Cell, measurements: list[Measurement], runs: Path, n_points: int) -> None:
    """Write what training and evaluation leave of a cell, with drawn numbers."""
    rng = np.random.default_rng(zlib.crc32(cell.id.encode()))
    is_coupled, folder = cell.optimizer.key.startswith("coupled"), runs / cell.id
    steps = np.unique(np.linspace(1, cell.steps, n_points).astype(int))
    noise = rng.normal(0, 0.02, steps.size)
    loss = (
        8.0 - 0.7 * np.log(steps) - 0.15 * is_coupled + 0.2 * noise.cumsum() / np.sqrt(steps.size)
    )
    constant = {"lr": 1e-3, "grad_norm": 1.0, "tokens_per_second": 5e4}
    rows: list[dict[str, Any]] = [
        {"step": int(step), "loss": float(value), **constant, "time": T0 + step}
        for step, value in zip(steps, loss, strict=True)
    ]
    rows[-1]["val_loss"] = rows[-1]["loss"] + 0.05
    write_text(folder / "history.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write_json(folder / "cell.json", cell.to_json())
    write_text(folder / "model" / "README.md", model_card(cell))
    environment = {"git_revision": "0123abcd" * 5, "device": "CPU"}
    record = {
        "cell": cell.id,
        "status": "completed",
        "reason": None,
        "model_sha256": f"{rng.integers(2**62):064x}",
    }
    write_sealed(folder / "run.json", record | {"environment": environment})
    for measurement in measurements:
        write_evaluation(measurement, cell, rng, is_coupled)


def write_evaluation(
    measurement: Measurement, cell: Cell, rng: np.random.Generator, is_coupled: bool
) -> None:
    """Write an evaluation with a number for each metric of its stage."""
    sha256 = measurement.model_sha256(cell.id)
    values = [
        {
            "task": metric.task,
            "metric": metric.name,
            "unit": metric.unit,
            "value": drawn(metric, rng, is_coupled),
        }
        for metric in METRICS.values()
        if metric.stage == measurement.stage.name
    ]
    record = {
        "cell": cell.id,
        "stage": measurement.stage.name,
        "status": "ok",
        "reason": None,
        "results": values,
    }
    known = {
        "version": measurement.stage.version,
        "settings": measurement.settings,
        "model_sha256": sha256,
    }
    path, sums = measurement.path(cell.id, sha256), {}
    path.parent.mkdir(exist_ok=True)
    for name, size in BESIDE.get(measurement.stage.name, {}).items():
        contents = rng.bytes(size)
        beside(path, name).write_bytes(contents)
        sums[name] = hashlib.sha256(contents).hexdigest()
    write_sealed(path, record | known | {"files": sums})


def drawn(metric: Metric, rng: np.random.Generator, is_coupled: bool) -> float:
    """Return a number that the metric can have."""
    return float(np.clip(rng.normal(0.4 + 0.4 * is_coupled, 0.02), metric.low, metric.high))


def timed(what: str, plan: Plan, uri: str, runs: Path) -> None:
    """Import, and print how long it took."""
    start, cpu = time.monotonic(), time.process_time()
    summary = import_study(plan, uri, runs=runs)
    counts = {name: count for name, count in summary.items() if isinstance(count, int) and count}
    seconds, cpu_seconds = time.monotonic() - start, time.process_time() - cpu
    print(f"{what}: {seconds:.1f} s, of them {cpu_seconds:.1f} s of CPU time; {counts}")


def main() -> None:
    """Draw the runs and import them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--points", type=int, default=200, help="lines of a history")
    parser.add_argument(
        "--study", type=Path, help="a study whose cells are drawn, in place of --cells"
    )
    parser.add_argument(
        "--folder", type=Path, help="where to draw them (default: a temporary folder)"
    )
    arguments = parser.parse_args()
    plan = (
        plan_of(arguments.cells)
        if arguments.study is None
        else make_plan(load_any_study(arguments.study), [arguments.study.parent])
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).absolute()
        cells = list(measured_cells(plan, folder / "runs"))
        for cell, measurements in cells:
            write_run(cell, measurements, folder / "runs", arguments.points)
        uri = f"sqlite:///{folder}/mlflow.db"
        timed(f"{len(cells)} cells of {arguments.points} points", plan, uri, folder / "runs")
        timed("again", plan, uri, folder / "runs")
        cell, (measurement, *_) = cells[0]
        write_evaluation(measurement, cell, np.random.default_rng(1), is_coupled=True)
        timed("after another evaluation of one cell", plan, uri, folder / "runs")
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")


if __name__ == "__main__":
    main()
