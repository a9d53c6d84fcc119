"""Prints the estimated training step of the paper's models, for docs/performance.md; it measures
nothing.

    python benchmarks/estimate.py

The mathematics is in ``coupled_adam_bench.tools.estimate.speed``; ``snakemake plan`` uses the same.
"""

from pathlib import Path

from coupled_adam_bench.study.config import load_any_study
from coupled_adam_bench.study.plan import make_plan
from coupled_adam_bench.tools.estimate.speed import estimated_mfu, step_parts
from coupled_adam_bench.training.memory import local_sequences, memory_of

CONFIGS = Path(__file__).parents[1] / "workflow" / "config"


def main() -> None:
    """Print the table."""
    print(
        "| model | GPUs | micro-batches | products, ms | attention | logits | layers | weights |"
        " MFU |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    plan = make_plan(load_any_study(CONFIGS / "paper.yaml"), [CONFIGS])
    names = dict.fromkeys(cell.model.name for cell in plan.cells.values())
    for cell in (
        next(cell for cell in plan.cells.values() if cell.model.name == name) for name in names
    ):
        execution = cell.study.execution
        micro_batches = -(
            -local_sequences(cell, execution) // memory_of(cell, execution).micro_batch_sequences
        )
        parts = [f"{1000 * seconds:.0f}" for seconds in step_parts(cell, execution).values()]
        mfu = 100 * estimated_mfu(cell, execution)
        print(
            f"| {cell.model.name} | {execution.gpus} | {micro_batches} | {' | '.join(parts)} |"
            f" {mfu:.0f} % |"
        )


if __name__ == "__main__":
    main()
