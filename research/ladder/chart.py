"""Draws loss against the memory, and calibration against what is forgotten between two visits.

    python research/ladder/chart.py [RESULTS]

With RESULTS, the folder of results of the study's own runs, it first writes ``curve.csv``: for each
optimizer and each bin of tokens by their count in the training text, the mean over seeds of
log(p / f). There p is the probability that the model gives the bin on the held-out text, and f the
bin's share of the training text. ``k`` is (1 - beta2) / (q B), with q the frequency of a token in
the middle of the bin, and B the tokens of a batch. ``distance`` is from Adam's fixed point at k.
"""

import csv
import json
import math
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from embedding_geometry.frequency import frequency_bins

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from claims import lines_of, of_seeds  # noqa: E402
from tables import unpack  # noqa: E402

from coupled_adam_bench.data.bins import UNIGRAM, open_tokens  # noqa: E402
from coupled_adam_bench.statistics.occupancy import beta2_of  # noqa: E402
from coupled_adam_bench.store.paths import data_dir, run_dir  # noqa: E402
from coupled_adam_bench.study.plan.cells import Cell  # noqa: E402
from coupled_adam_bench.tools.verify.recorded import read_recorded  # noqa: E402

LABELS = {"adamw": "Adam", "adam_mini": "Adam-mini", "coupled_adam": "Coupled Adam"}
COLORS = dict(zip(LABELS, ("#0072B2", "#E69F00", "#009E73"), strict=True))
MARKERS = dict(zip(LABELS, "osD", strict=True))
SEEDS = 3
LEAST = 500
"""Bins with fewer held-out tokens are left out: their log(p / f) is noise of the held-out text."""
PAPER = "adamw_f0.1"
"""The arm that the losses are compared with."""


def cells() -> dict[str, Cell]:
    """Return the cells of the study, by id."""
    with tempfile.TemporaryDirectory() as folder:
        return dict(read_recorded(unpack("ladder", Path(folder))).plan.cells)


def fixed_point(k: float) -> float:
    """Return log(p / f) of a row at Adam's fixed point (Kar 2026, arXiv 2609.37535)."""
    return math.log(k / 2) - math.log(math.expm1(k / 2))


def log_ratios(cell: Cell, results: Path) -> list[tuple[float, float, int]]:
    """Return for each bin the count of its middle, log(p / f), and its held-out tokens."""
    folder = data_dir(cell.data_id, results)
    training_V = np.load(folder / UNIGRAM)
    held_out = open_tokens(folder, "test", verify=False)
    held_out_V = np.bincount(held_out, minlength=len(training_V))
    (evaluation,) = run_dir(cell.id, results).glob("evaluations/test_loss-*.json")
    curve = json.loads(evaluation.read_text(encoding="utf-8"))["calibration"]
    found = []
    bins = zip(frequency_bins(training_V), curve["pooled_log_ratio"], strict=True)
    for (count, chosen_V), log_ratio in bins:
        tokens = int(held_out_V[chosen_V].sum())
        share = training_V[chosen_V].sum() / training_V.sum()
        if share > 0 and tokens >= LEAST:
            # The program has the ratio to the held-out frequency, which is the same for all arms.
            of_text = math.log(share) - math.log(tokens / len(held_out))
            found.append((count, log_ratio - of_text, tokens))
    return found


def write_curve(results: Path) -> None:
    """Write ``curve.csv`` from the evaluations of the runs."""
    found: dict[tuple[str, float, float, int], list[float]] = defaultdict(list)
    for cell in cells().values():
        total = np.load(data_dir(cell.data_id, results) / UNIGRAM).sum()
        batch_tokens = cell.training.batch_sequences * cell.training.seq_len
        for count, log_ratio, tokens in log_ratios(cell, results):
            k = (1 - beta2_of(cell)) / (count / total * batch_tokens)
            found[cell.optimizer.key, count, k, tokens].append(log_ratio)
    with (HERE / "curve.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["optimizer", "count", "k", "held_out_tokens", "log_ratio", "distance"])
        for (optimizer, count, k, tokens), ratios in found.items():
            mean = statistics.mean(ratios)
            numbers = [
                f"{number:.6g}" for number in (count, k, tokens, mean, mean - fixed_point(k))
            ]
            writer.writerow([optimizer, *numbers])


def arms() -> dict[str, tuple[str, float]]:
    """Return the name and beta2 of each optimizer of the study, by its key."""
    return {
        cell.optimizer.key: (cell.optimizer.embedding.name, beta2_of(cell))
        for cell in cells().values()
    }


def draw_loss(axes: Axes, of_key: dict[str, tuple[str, float]]) -> None:
    """Draw the loss, paired by seed, against the steps that the second moment remembers."""
    lines = lines_of("ladder/results.csv")
    place = {"task": "test", "metric": "loss", "reference": PAPER}
    for name, label in LABELS.items():
        points = []
        for key, (own, beta2) in of_key.items():
            if own == name:
                gap = {"difference": 0.0, "low": 0.0, "high": 0.0}
                if key != PAPER:
                    gap = of_seeds(lines, place | {"optimizer": key}, SEEDS)
                points.append((1 / (1 - beta2), gap["difference"], gap["low"], gap["high"]))
        memory, gaps, low, high = map(np.array, zip(*sorted(points), strict=True))
        style: dict[str, Any] = {"color": COLORS[name], "marker": MARKERS[name], "markersize": 4}
        axes.errorbar(memory, gaps, [gaps - low, high - gaps], capsize=3, label=label, **style)
    axes.axhline(0, color="0.4", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("memory of the second moment, 1 / (1 - beta2), in steps")
    axes.set_ylabel("loss minus that of Adam with beta2 = 0.95")
    axes.legend(frameon=False, loc="center right")


def draw_calibration(axes: Axes, of_key: dict[str, tuple[str, float]]) -> None:
    """Draw log(p / f) of each bin against k."""
    lines = lines_of("ladder/curve.csv")
    for name, label in LABELS.items():
        points = [
            (float(line["k"]), float(line["log_ratio"]))
            for line in lines
            if of_key[line["optimizer"]][0] == name
        ]
        k, ratio = zip(*points, strict=True)
        axes.plot(k, ratio, MARKERS[name], color=COLORS[name], markersize=3, alpha=0.7, label=label)
    k_N = np.geomspace(1e-4, 5, 100)
    theory = [fixed_point(k) for k in k_N]
    axes.plot(k_N, theory, color="0.3", linewidth=1, label="fixed point of Adam")
    axes.set_xscale("log")
    axes.set_xlim(1e-4, 5)
    axes.set_xlabel("k, what is forgotten between two visits")
    axes.set_ylabel("log (p / f) of tokens of one frequency")
    axes.legend(frameon=False, loc="lower left")


def main() -> None:
    """Draw the figure beside this file."""
    if len(sys.argv) > 1:
        write_curve(Path(sys.argv[1]))
    of_key = arms()
    mpl.rcParams.update({"svg.hashsalt": "ladder", "font.size": 9, "svg.fonttype": "path"})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
    draw_loss(left, of_key)
    draw_calibration(right, of_key)
    (HERE / "figures").mkdir(exist_ok=True)
    figure.savefig(HERE / "figures" / "ladder.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
