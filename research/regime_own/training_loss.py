"""The training loss of each optimizer over the last twentieth of its steps, beside the first
optimizer of its block.

    python research/regime_own/training_loss.py results/STUDY > training_loss.csv

Runs of one seed read the same batches in the same steps, so their difference, paired by seed with a
95 % interval, does not have the noise of the text. It says whether a difference on held-out text is
one in training, too.
"""

import argparse
import csv
import math
import sys
from pathlib import Path

from coupled_adam_bench.results.sample import summarize
from coupled_adam_bench.statistics.student import interval
from coupled_adam_bench.store import paths
from coupled_adam_bench.store.runs import run_history
from coupled_adam_bench.study.plan import load_plan
from coupled_adam_bench.study.plan.cells import Cell

SHARE = 0.95  # of the steps lie before those that count


def last_loss(cell: Cell, results: Path) -> float:
    """Return the mean of the losses that training recorded in the last steps, NaN if there is
    none."""
    history = run_history(paths.run_dir(cell.id, results))
    return summarize(
        [row["loss"] for row in history if "loss" in row and row["step"] > SHARE * cell.steps]
    ).mean


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path)
    study = parser.parse_args().study
    losses: dict[tuple[int, bool], dict[str, dict[int, float]]] = {}
    for cell in load_plan(study / "plan.json").cells.values():
        of_block = losses.setdefault((cell.n_tokens, cell.tuning is not None), {})
        of_block.setdefault(cell.optimizer.key, {})[cell.seed] = last_loss(cell, study.parent)
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(
        (
            "n_tokens",
            "tuned",
            "optimizer",
            "reference",
            "seeds",
            "mean",
            "difference",
            "low",
            "high",
        )
    )
    for (n_tokens, tuned), of_block in sorted(losses.items()):
        reference, first = next(iter(of_block.items()))
        for optimizer, values in of_block.items():
            pairs = summarize([values[seed] - first[seed] for seed in values])
            ends = (
                interval(pairs.mean, pairs.sd / math.sqrt(pairs.n), pairs.n - 1)
                if pairs.n > 1
                else (math.nan,) * 2
            )
            mean = summarize(list(values.values())).mean
            rows.writerow(
                (n_tokens, tuned, optimizer, reference, len(values), mean, pairs.mean, *ends)
            )


if __name__ == "__main__":
    main()
