"""Figures of the runs of one size: what their histories have at each step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.catalog.metrics import METRICS
from coupled_adam_bench.cells import Cell, readable_count
from coupled_adam_bench.paths import RunFiles
from coupled_adam_bench.report.style import add_legend, axis_label, optimizer_styles, plain
from coupled_adam_bench.results.groups import Layout
from coupled_adam_bench.runs import read_history

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Shown:
    """The cells of the largest size at most tokens; of several sizes alike, those of the first."""

    cells: Sequence[Cell]
    title: str


def largest_size(layout: Layout) -> Shown:
    """Return the cells that figures of single runs show; of crossed seeds, those whose data have the same seed."""
    plan, setups = layout.plan, layout.setups
    largest = max(plan.cells.values(), key=lambda cell: (cell.n_params, cell.n_tokens))
    place = (setups[largest.id], largest.n_tokens)
    cells = [cell for cell in plan.cells.values() if (setups[cell.id], cell.n_tokens) == place]
    cells = [cell for cell in cells if cell.data_seed == cell.seed] or cells
    tokens = largest.tokens_label or readable_count(largest.n_tokens)
    return Shown(cells, f"N = {layout.labels[setups[largest.id]]}, D = {tokens}")


def _draw(
    ax: "Axes", rows: Sequence[Mapping[str, Any]], name: str, cell: Cell, style: Mapping[str, Any], **options: Any
) -> None:
    """Draw a column of a history against the step, where it has a finite value."""
    points = [(row["step"], row[name]) for row in rows if name in row and math.isfinite(row[name])]
    if points:
        ax.plot(*zip(*points, strict=True), label=plain(cell.optimizer.label), **{**style, **options})


def _two_axes(shown: Shown) -> "tuple[Figure, Sequence[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    axes: Sequence[Axes] = figure.subplots(1, 2)
    for ax in axes:
        ax.set_xlabel("step")
        ax.set_title(plain(shown.title))
    return figure, axes


def training(layout: Layout, runs: Path) -> "Figure":
    """Draw training and validation loss, and the mean-norm ratio, against the step."""
    shown = largest_size(layout)
    figure, (losses, norms) = _two_axes(shown)
    styles = optimizer_styles(layout.plan)
    for cell in shown.cells:
        # In partial results a cell may not be trained yet: it has no line, and the report's list of runs says why.
        rows, style = read_history(RunFiles(runs / cell.id).history), styles[cell.optimizer.key]
        _draw(losses, rows, "loss", cell, style, marker="", linewidth=0.8)
        _draw(losses, rows, "val_loss", cell, style, linestyle="", markersize=3)
        _draw(norms, rows, "mean_norm_ratio", cell, style, marker="", linewidth=0.8)
    low, high = losses.dataLim.intervaly
    guessing = math.log(shown.cells[0].vocab_size)
    if low < guessing and high > 1.5 * guessing:  # a run that blows up would squeeze the others
        losses.set_ylim(0.97 * low, 1.5 * guessing)
    losses.set_ylabel("loss (nat/token)")
    norms.set_ylabel(axis_label(METRICS["mean_norm_ratio"]))
    add_legend(figure)
    return figure


def geometry(layout: Layout, runs: Path) -> "Figure":
    """Draw isotropy and mean-norm ratio against the step, on a log scale, where the geometry was measured."""
    shown = largest_size(layout)
    figure, axes = _two_axes(shown)
    styles = optimizer_styles(layout.plan)
    for cell in shown.cells:
        rows = [row for row in read_history(RunFiles(runs / cell.id).history) if "isotropy" in row]
        for ax, name in zip(axes, ("isotropy", "mean_norm_ratio"), strict=True):
            _draw(ax, rows, name, cell, styles[cell.optimizer.key], markersize=3, linewidth=0.8)
    for ax, name in zip(axes, ("isotropy", "mean_norm_ratio"), strict=True):
        ax.set_ylabel(axis_label(METRICS[name]))
        ax.set_ylim(0, 1.02)
        if ax.has_data():
            ax.set_xscale("log")
    add_legend(figure)
    return figure
