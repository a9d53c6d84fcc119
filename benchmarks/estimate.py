"""Prints what ``plan`` estimates for the paper's models, and the public logs behind it; it measures
nothing.

    python benchmarks/estimate.py
"""

from pathlib import Path

from coupled_adam_bench.tools.estimate.quantities import span

from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.study.plan.cells import Cell
from coupled_adam_bench.study.settings import load_any_study
from coupled_adam_bench.tools.estimate.public_logs import public_logs, public_residual
from coupled_adam_bench.tools.estimate.roofline import step_parts
from coupled_adam_bench.tools.estimate.speed import estimated_mfu
from coupled_adam_bench.tools.estimate.study import estimate_study
from coupled_adam_bench.training.memory import local_sequences, memory_of

CONFIGS = Path(__file__).parents[1] / "workflow" / "config"
STUDIES = ("paper_small", "paper_large", "paper_sgd", "paper_scale", "paper")


def print_table(header: str, rows: list[list[object]]) -> None:
    """Print a table in Markdown, and an empty line."""
    print(header)
    print("|" + "---|" * header.count(" | ") + "---|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print()


def step_row(cell: Cell) -> list[object]:
    """Return the row of a model: the parts of its step in milliseconds, and the MFU to expect."""
    execution = cell.study.execution
    micro_batch = memory_of(cell, execution).micro_batch_sequences
    micro_batches = -(-local_sequences(cell, execution) // micro_batch)
    parts = [f"{1000 * seconds:.0f}" for seconds in step_parts(cell, execution).values()]
    mfu = f"{100 * estimated_mfu(cell, execution):.0f} %"
    return [cell.model.name, execution.gpus, micro_batches, *parts, mfu]


def main() -> None:
    """Print the tables."""
    plans = {
        name: make_plan(load_any_study(CONFIGS / f"{name}.yaml"), [CONFIGS]) for name in STUDIES
    }
    rows: list[list[object]] = []
    for name, plan in plans.items():
        estimate = estimate_study(plan)
        rows.append([f"`{name}`", len(estimate.cells), span(*estimate.hours_range)])
    print_table("| study | cells | GPU hours on an H200 |", rows)
    models: dict[str, Cell] = {}
    for cell in plans["paper"].cells.values():
        models.setdefault(cell.model.name, cell)
    print_table(
        "| model | GPUs | micro-batches | products, ms | attention | logits | layers | weights |"
        " MFU to expect |",
        [step_row(cell) for cell in models.values()],
    )
    rows = []
    for log in public_logs():
        counted = log.seconds / log.residual
        off = log.residual / public_residual(log.gpu).factor
        gpus = f"{log.cell.study.execution.gpus} x {log.card or log.gpu + ', assumed'}"
        times = [f"{1000 * log.seconds:.4g}", f"{1000 * counted:.4g}", f"{log.residual:.2f}"]
        name = log.about.split("; ")[0]
        rows.append([f"[{name}]({log.source})", gpus, *times, f"{off:.2f}"])
    print_table("| log | GPUs | ms a step | counted | ratio | over the estimate |", rows)


if __name__ == "__main__":
    main()
