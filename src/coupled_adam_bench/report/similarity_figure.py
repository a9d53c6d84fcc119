"""The figure of the similarity of word pairs against their human rating."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coupled_adam_bench.evaluation.kept import PairSimilarities, read_pair_similarities
from coupled_adam_bench.report.history_figures import Shown
from coupled_adam_bench.report.style import add_legend, optimizer_styles, panels, plain
from coupled_adam_bench.results.groups import Layout
from coupled_adam_bench.store.stored import measurement_of
from coupled_adam_bench.study.catalog.stages import STAGES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIMILARITY_FIGURE = {
    "similarity": "Cosine of each word pair against its human rating, a dot per pair of the first seed; lines: mean "
    "over all seeds, in fifths of the pairs.",
}
_PARTS = 5  # of the pairs, by their rating: the scatter of single pairs hides the trend
_COLUMNS = 3


def means_by_rating(ratings_P: NDArray[np.float64], cosines_SP: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Return mean rating and mean cosine of equally many pairs, in the order of their ratings.

    Sets of few different ratings have a part for each. Cosines that are NaN are left out, and parts without any other.
    S: seeds, P: pairs.
    """
    values = np.unique(ratings_P)
    if len(values) <= _PARTS:
        parts = [np.flatnonzero(ratings_P == value) for value in values]
    else:
        parts = np.array_split(np.argsort(ratings_P, kind="stable"), min(_PARTS, len(ratings_P)))
    means = []
    for part in parts:
        known = cosines_SP[:, part][np.isfinite(cosines_SP[:, part])]
        if len(known):
            means.append((float(ratings_P[part].mean()), float(known.mean())))
    return means


def similarity_figure(layout: Layout, runs: Path, shown: Shown) -> "Figure":
    """Draw a panel for each set; a cell that is not measured, or has no pairs on file, is left out."""
    styles = optimizer_styles(layout.plan)
    labels = {cell.optimizer.key: cell.optimizer.label for cell in shown.cells}
    by_set: dict[str, dict[str, list[PairSimilarities]]] = {}
    for cell in shown.cells:
        measurement = measurement_of(STAGES["embeddings"], cell.study, cell.data_id, runs)
        if measurement.is_there(cell.id):
            for found in read_pair_similarities(measurement, cell.id):
                by_set.setdefault(found.name, {}).setdefault(cell.optimizer.key, []).append(found)
    columns = min(max(len(by_set), 1), _COLUMNS)
    rows = max(-(-len(by_set) // columns), 1)
    figure, axes = panels(rows, columns)
    for ax, (name, by_optimizer) in zip(axes, by_set.items(), strict=False):
        for key, seeds in by_optimizer.items():
            dots = {"color": styles[key]["color"], "marker": styles[key]["marker"], "linestyle": ""}
            ax.plot(seeds[0].ratings, seeds[0].cosines, markersize=2, alpha=0.2, markeredgewidth=0, **dots)
            means = means_by_rating(seeds[0].ratings, np.array([found.cosines for found in seeds]))
            if means:
                ax.plot(*zip(*means, strict=True), label=plain(labels[key]), markersize=4, **styles[key])
        n_pairs = len(next(iter(by_optimizer.values()))[0].ratings)
        ax.set_title(plain(f"{name}, {n_pairs:,} pairs" if len(by_set) > 1 else f"{name}, {shown.title}"))
        ax.set_xlabel("human rating")
        ax.set_ylabel("cosine")
    for ax in axes[len(by_set) :] if by_set else []:
        ax.remove()
    add_legend(figure)
    return figure
