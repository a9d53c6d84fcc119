"""Figures of the runs of one size: what their histories have at each step."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.report.style import add_legend, axis_label, optimizer_styles, panels, plain
from coupled_adam_bench.results.groups import Layout
from coupled_adam_bench.store.runs import run_history
from coupled_adam_bench.study.catalog.bands import BANDS
from coupled_adam_bench.study.catalog.metrics import METRICS
from coupled_adam_bench.study.catalog.names import VALIDATION_LOSS
from coupled_adam_bench.study.cells import Cell, readable_count

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


History = Sequence[Mapping[str, Any]]
"""The rows of a run's ``history.jsonl``."""


def _draw(ax: "Axes", histories: Sequence[History], name: str, label: str, style: Mapping[str, Any]) -> None:
    """Draw the mean over seeds of a column of histories against the step, and a band of one standard deviation.

    Both are where all seeds have a finite value. Where some have none, such as behind the step in which one diverged,
    the others are drawn one by one: the mean of fewer seeds would look like a change of the optimizer.
    """
    import numpy as np

    found = [{row["step"]: row[name] for row in rows if math.isfinite(row.get(name, math.nan))} for rows in histories]
    seeds = [values for values in found if values]
    if not seeds:
        return
    common = sorted(set[int].intersection(*(set(values) for values in seeds)))
    drawn = np.array([[values[step] for step in common] for values in seeds])
    ax.plot(common, drawn.mean(axis=0), label=plain(label), **style)
    if len(seeds) > 1:
        mean, sd = drawn.mean(axis=0), drawn.std(axis=0, ddof=1)
        ax.fill_between(common, mean - sd, mean + sd, color=style["color"], alpha=0.25, linewidth=0)
    for values in seeds:
        rest = [(step, value) for step, value in sorted(values.items()) if step not in common]
        if rest:
            ax.plot(*zip(*rest, strict=True), **{**style, "alpha": 0.5, "linewidth": 0.5})


def _by_optimizer(shown: Shown, runs: Path) -> dict[str, list[History]]:
    """Return by the optimizer's key the histories of the seeds.

    In partial results a cell may not be trained yet: it has no line, and the report's list of runs says why.
    """
    histories: dict[str, list[History]] = {}
    for cell in shown.cells:
        histories.setdefault(cell.optimizer.key, []).append(run_history(runs / cell.id))
    return histories


def _two_axes(shown: Shown) -> "tuple[Figure, Sequence[Axes]]":
    figure, axes = panels(1, 2)
    for ax in axes:
        ax.set_xlabel("step")
        ax.set_title(plain(shown.title))
    return figure, axes


def training(layout: Layout, runs: Path) -> "Figure":
    """Draw training and validation loss, and the mean-norm ratio, against the step."""
    shown = largest_size(layout)
    figure, (losses, norms) = _two_axes(shown)
    styles = optimizer_styles(layout.plan)
    labels = {cell.optimizer.key: cell.optimizer.label for cell in shown.cells}
    for key, histories in _by_optimizer(shown, runs).items():
        line = styles[key] | {"marker": "", "linewidth": 1.0}
        _draw(losses, histories, "loss", labels[key], line)
        _draw(losses, histories, VALIDATION_LOSS, labels[key], styles[key] | {"linestyle": "", "markersize": 3})
        _draw(norms, histories, "mean_norm_ratio", labels[key], line)
    low, high = losses.dataLim.intervaly
    guessing = math.log(shown.cells[0].vocab_size)
    if low < guessing and high > 1.5 * guessing:  # a run that blows up would squeeze the others
        losses.set_ylim(0.97 * low, 1.5 * guessing)
    losses.set_ylabel("loss (nat/token)")
    norms.set_ylabel(axis_label(METRICS["mean_norm_ratio"]))
    add_legend(figure)
    return figure


def _on_log_steps(
    layout: Layout, runs: Path, columns: Mapping[str, str], chosen: Callable[[History], History]
) -> "tuple[Figure, Sequence[Axes]]":
    """Draw two columns of the ``chosen`` rows of histories, with their labels, against the step on a log scale."""
    shown = largest_size(layout)
    figure, axes = _two_axes(shown)
    styles = optimizer_styles(layout.plan)
    labels = {cell.optimizer.key: cell.optimizer.label for cell in shown.cells}
    for key, whole in _by_optimizer(shown, runs).items():
        histories = [chosen(rows) for rows in whole]
        for ax, name in zip(axes, columns, strict=True):
            _draw(ax, histories, name, labels[key], styles[key] | {"markersize": 3, "linewidth": 0.8})
    for ax, label in zip(axes, columns.values(), strict=True):
        ax.set_ylabel(label)
        if ax.has_data():
            ax.set_xscale("log")
    add_legend(figure)
    return figure, axes


def geometry(layout: Layout, runs: Path) -> "Figure":
    """Draw isotropy and mean-norm ratio against the step, on a log scale, where the geometry was measured."""
    columns = {name: axis_label(METRICS[name]) for name in ("isotropy", "mean_norm_ratio")}
    figure, axes = _on_log_steps(layout, runs, columns, lambda rows: [row for row in rows if "isotropy" in row])
    for ax in axes:
        ax.set_ylim(0, 1.02)
    return figure


_RAREST, _MOST_FREQUENT = f"row_step_{BANDS[0].name}", f"row_step_{BANDS[-1].name}"
_RATIO = "ratio"


def _with_ratio(rows: History) -> History:
    """Return the rows that have the steps of both bands, with the ratio of these."""
    return [
        {**row, _RATIO: row[_RAREST] / row[_MOST_FREQUENT]}
        for row in rows
        if row.get(_RAREST) is not None and row.get(_MOST_FREQUENT)
    ]


def row_steps(layout: Layout, runs: Path) -> "Figure":
    """Draw the relative step of rare embeddings, and over that of frequent ones, against the step on log scales."""
    columns = {_RAREST: r"mean $\|\Delta e\| / \|e\|$, rarest 1 %", _RATIO: "the same over that of the most frequent"}
    figure, axes = _on_log_steps(layout, runs, columns, _with_ratio)
    for ax in axes:
        if ax.has_data():
            ax.set_yscale("log")
    return figure
