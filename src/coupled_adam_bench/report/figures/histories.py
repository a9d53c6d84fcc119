"""Figures of the runs of one size: what their histories have at each step."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coupled_adam_bench.report.figures import largest_size
from coupled_adam_bench.report.figures.style import (
    Style,
    add_legend,
    axis_label,
    curve,
    cut_off,
    optimizer_styles,
    panels,
)
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.store.runs import run_history
from coupled_adam_bench.study.catalog.metrics import BANDS, METRICS
from coupled_adam_bench.study.catalog.names import VALIDATION_LOSS

History = Sequence[Mapping[str, Any]]
"""The rows of a run's ``history.jsonl``."""


def draw_mean(ax: Axes, histories: Sequence[History], name: str, label: str, style: Style) -> None:
    """Draw the mean over seeds of a column of histories against the step, and a band of one standard deviation.

    Both are where all seeds have a finite value. Where some have none, such as behind the step in which one diverged,
    the others are drawn one by one: the mean of fewer seeds would look like a change of the optimizer.
    """
    found = [{row["step"]: row[name] for row in rows if math.isfinite(row.get(name, math.nan))} for rows in histories]
    seeds = [values for values in found if values]
    if not seeds:
        return
    common = sorted(set[int].intersection(*(set(values) for values in seeds)))
    values_SP = np.array([[values[step] for step in common] for values in seeds])
    mean = values_SP.mean(axis=0)
    ax.plot(common, mean, label=label, **style)
    if len(seeds) > 1:
        sd = values_SP.std(axis=0, ddof=1)
        ax.fill_between(common, mean - sd, mean + sd, color=style["color"], alpha=0.25, linewidth=0)
    for values in seeds:
        rest = [(step, value) for step, value in sorted(values.items()) if step not in common]
        curve(ax, rest, **{**style, "alpha": 0.5, "linewidth": 0.5})


def _against_steps(
    material: Material,
    lines: Sequence[tuple[int, str, Style]],
    labels: tuple[str, str],
    chosen: Callable[[History], History] = lambda rows: rows,
) -> tuple[Figure, Sequence[Any]]:
    """Draw lines of (panel, column, changes of the optimizer's style) of histories, of their ``chosen`` rows.

    In partial results a cell may not be trained yet: it has no line, and the report's list of runs says why.
    """
    shown, styles = largest_size(material.study.layout), optimizer_styles(material.plan)
    histories: dict[str, list[History]] = {}
    for cell in shown.cells:
        histories.setdefault(cell.optimizer.key, []).append(chosen(run_history(material.runs / cell.id)))
    figure, axes = panels(1, 2)
    for key, of_seeds in histories.items():
        for panel, column, changes in lines:
            draw_mean(axes[panel], of_seeds, column, shown.labels[key], {**styles[key], **changes})
    for ax, label in zip(axes, labels, strict=True):
        ax.set(xlabel="step", ylabel=label, title=shown.title)
    add_legend(figure)
    return figure, axes


def training(material: Material) -> Figure:
    """Draw training and validation loss, and the mean-norm ratio, against the step."""
    line, dots = {"marker": "", "linewidth": 1.0}, {"linestyle": "", "markersize": 3}
    lines = ((0, "loss", line), (0, VALIDATION_LOSS, dots), (1, "mean_norm_ratio", line))
    figure, axes = _against_steps(material, lines, ("loss (nat/token)", axis_label(METRICS["mean_norm_ratio"])))
    cut_off(axes[0], math.log(largest_size(material.study.layout).cells[0].vocab_size))
    return figure


def _on_log_steps(
    material: Material, columns: tuple[str, str], labels: tuple[str, str], chosen: Callable[[History], History]
) -> tuple[Figure, Sequence[Any]]:
    """Draw a column of the ``chosen`` rows of histories in each of two panels, against the step on a log scale."""
    lines = [(panel, column, {"markersize": 3, "linewidth": 0.8}) for panel, column in enumerate(columns)]
    figure, axes = _against_steps(material, lines, labels, chosen)
    for ax in axes:
        if ax.has_data():
            ax.set_xscale("log")
    return figure, axes


def geometry(material: Material) -> Figure:
    """Draw isotropy and mean-norm ratio against the step, on a log scale, where the geometry was measured."""
    columns = ("isotropy", "mean_norm_ratio")
    labels = (axis_label(METRICS[columns[0]]), axis_label(METRICS[columns[1]]))
    figure, axes = _on_log_steps(material, columns, labels, lambda rows: [row for row in rows if "isotropy" in row])
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


def row_steps(material: Material) -> Figure:
    """Draw the relative step of rare embeddings, and over that of frequent ones, against the step on log scales."""
    labels = (r"mean $\|\Delta e\| / \|e\|$, rarest 1 %", "the same over that of the most frequent")
    figure, axes = _on_log_steps(material, (_RAREST, _RATIO), labels, _with_ratio)
    for ax in axes:
        if ax.has_data():
            ax.set_yscale("log")
    return figure
