"""Draws the gap in loss between Coupled Adam and Adam against Adam's memory in tokens.

    python research/tokens/chart.py

A line is a batch: Coupled Adam with beta2 = 0.95 minus Adam with the beta2 of each point, the mean
over seeds and the 95 % interval, paired by seed.
"""

import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from claims import is_selected, lines_of, of_seeds  # noqa: E402
from tables import unpack  # noqa: E402

from coupled_adam_bench.statistics.occupancy import half_life  # noqa: E402
from coupled_adam_bench.study.plan.cells import Cell  # noqa: E402
from coupled_adam_bench.tools.verify.recorded import read_recorded  # noqa: E402

STEPS = 2_000
SEEDS = 3
BATCHES = {"2k": 2_048, "16k": 16_384, "98k": 98_304, "393k": 393_216}
COLORS = dict(zip(BATCHES, ("#0072B2", "#E69F00", "#009E73", "#CC79A7"), strict=True))
RECIPES = {"demo": 14e3, "paper": 1.33e6, "modded-nanogpt": 36e6}
"""The half-life of Adam's second moment of the embedding in known recipes, in tokens."""


def cells() -> list[Cell]:
    """Return the cells of the study."""
    with tempfile.TemporaryDirectory() as folder:
        return list(read_recorded(unpack("tokens", Path(folder))).plan.cells.values())


def gaps(batch: str, of_study: list[Cell]) -> list[tuple[float, float, float, float]]:
    """Return memory, gap, and both ends of its interval for each Adam of a batch."""
    n_tokens = STEPS * BATCHES[batch]
    place = {"model": "contexts", "n_tokens": str(n_tokens), "task": "test", "metric": "loss"}
    lines = [line for line in lines_of("tokens/results.csv") if is_selected(line, place)]
    memories = {
        cell.optimizer.key: half_life(cell)
        for cell in of_study
        if (cell.model.name, cell.n_tokens) == ("contexts", n_tokens)
        and cell.optimizer.embedding.name == "adamw"
    }
    found = []
    for key, memory in memories.items():
        gap = of_seeds(lines, {"optimizer": "coupled_adam", "reference": key}, SEEDS)
        found.append((memory, gap["difference"], gap["low"], gap["high"]))
    return sorted(found)


def main() -> None:
    """Draw the figure beside this file."""
    mpl.rcParams.update({"svg.hashsalt": "tokens", "font.size": 9, "svg.fonttype": "path"})
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    of_study = cells()
    for batch, color in COLORS.items():
        memory, gap, low, high = zip(*gaps(batch, of_study), strict=True)
        errors = [
            [middle - end for middle, end in zip(gap, low, strict=True)],
            [end - middle for middle, end in zip(gap, high, strict=True)],
        ]
        label = f"batch of {BATCHES[batch]:,} tokens"
        axes.errorbar(memory, gap, errors, marker="o", capsize=3, color=color, label=label)
    axes.axhline(0, color="0.4", linewidth=0.8)
    axes.set_ylim(top=0.065)
    for name, memory in RECIPES.items():
        axes.axvline(memory, color="0.7", linewidth=0.8, linestyle=":")
        side = "right" if memory > 1e7 else "left"
        axes.text(memory, 0.062, f" {name} ", ha=side, va="top", fontsize=8, color="0.35")
    axes.set_xscale("log")
    axes.set_xlabel("half-life of Adam's second moment, in tokens")
    axes.set_ylabel("loss of Coupled Adam minus Adam's")
    axes.legend(loc="lower right", frameon=False)
    (HERE / "figures").mkdir(exist_ok=True)
    figure.savefig(HERE / "figures" / "memory.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
