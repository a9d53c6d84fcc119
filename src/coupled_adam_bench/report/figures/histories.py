"""Figures of what the histories of runs have at each step: curves of one size, and Adam's second
moment against the probability of tokens."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coupled_adam_bench.report.figures import largest_size, plain
from coupled_adam_bench.report.figures.style import (
    STYLES,
    Style,
    add_legend,
    axis_label,
    curve,
    cut_off,
    optimizer_styles,
    panels,
)
from coupled_adam_bench.results.groups import Layout
from coupled_adam_bench.results.setups import Setup
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.store.runs import run_history
from coupled_adam_bench.study.catalogue.metrics import METRICS
from coupled_adam_bench.study.catalogue.names import ADAM, VALIDATION_LOSS
from coupled_adam_bench.study.plan.cells import Cell

_POINTS = 500
"""The most points of a curve, which are more than its panel has pixels."""
History = Sequence[Mapping[str, Any]]
"""The rows of a run's ``history.jsonl``."""


def draw_mean(
    ax: Axes,
    histories: Sequence[History],
    name: str,
    label: str,
    style: Style,
    against: str = "step",
) -> None:
    """Draw the mean over seeds of a column of histories against another, and a band of one standard
    deviation.

    Both are drawn where all seeds have a finite value. Where a seed has none, such as after the
    step in which it diverged, the others are drawn one by one: the mean of fewer seeds would look
    like a change of the optimizer.
    """
    seeds = []
    for rows in histories:
        finite = [row for row in rows if math.isfinite(row.get(name, math.nan))]
        if finite:
            seeds.append({row[against]: row[name] for row in finite})
    if not seeds:
        return
    common = set[int].intersection(*(set(values) for values in seeds))
    every = np.array(sorted(common))
    shown = every[
        np.unique(
            np.linspace(0, max(len(every) - 1, 0), min(len(every), _POINTS)).round().astype(int)
        )
    ]
    # S: seeds, P: the points that are shown.
    values_SP = np.empty((len(seeds), len(shown)))
    for index, values in enumerate(seeds):
        values_SP[index] = [values[step] for step in shown]
    mean = values_SP.mean(axis=0)
    ax.plot(shown, mean, label=label, **style)
    if len(seeds) > 1:
        sd = values_SP.std(axis=0, ddof=1)
        ax.fill_between(shown, mean - sd, mean + sd, color=style["color"], alpha=0.25, linewidth=0)
    for values in seeds:
        rest = [(step, value) for step, value in sorted(values.items()) if step not in common]
        curve(ax, rest, **{**style, "alpha": 0.5, "linewidth": 0.5})


def _against_steps(
    material: Material,
    panels_of: Mapping[str, Mapping[str, Style]],
    chosen: Callable[[Mapping[str, Any]], bool] = lambda row: True,  # noqa: ARG005
    signs: Mapping[str, Style] | None = None,
) -> tuple[Figure, Sequence[Any]]:
    """Draw the ``chosen`` rows of histories: by the label of each panel, columns and changes of the
    optimizer's style.

    In partial results a cell may not be trained yet: it has no line, and the report's list of runs
    says why.
    """
    shown, styles = largest_size(material.study.layout), optimizer_styles(material.plan)
    histories: dict[str, list[History]] = {}
    for cell in shown.cells:
        rows = [row for row in run_history(material.runs / cell.id) if chosen(row)]
        histories.setdefault(cell.optimizer.key, []).append(rows)
    figure, axes = panels(2)
    for ax, (label, lines) in zip(axes, panels_of.items(), strict=True):
        for key, of_seeds in histories.items():
            for column, changes in lines.items():
                draw_mean(ax, of_seeds, column, shown.labels[key], {**styles[key], **changes})
        ax.set(xlabel="step", ylabel=label, title=shown.title)
    add_legend(figure, signs=signs)
    return figure, axes


def training(material: Material) -> Figure:
    """Draw training and validation loss, and the mean-norm ratio, against the step."""
    line, dots = {"marker": "", "linewidth": 1.0}, {"linestyle": "", "markersize": 3}
    losses, ratio = {"loss": line, VALIDATION_LOSS: dots}, METRICS["mean_norm_ratio"]
    figure, axes = _against_steps(
        material,
        {"loss (nat/token)": losses, axis_label(ratio): {ratio.name: line}},
        signs={"training": line, "validation": {**dots, "marker": "o"}},
    )
    cut_off(axes[0], math.log(largest_size(material.study.layout).cells[0].vocab_size))
    return figure


def geometry(material: Material) -> Figure:
    """Draw isotropy and mean-norm ratio against the step, on a log scale, where the geometry was
    measured."""
    style = {"markersize": 3, "linewidth": 0.8}
    metrics = [METRICS[name] for name in ("isotropy", "mean_norm_ratio")]
    labels = {axis_label(metric): {metric.name: style} for metric in metrics}
    figure, axes = _against_steps(material, labels, lambda row: "isotropy" in row)
    for ax in axes:
        if ax.has_data():
            ax.set_xscale("log")
        ax.set_ylim(0, 1.02)
    return figure


_MOMENT_NUMBERS = {
    "moment_slope": "slope $A$",
    "moment_exponent": "exponent",
    "moment_r_squared": "$R^2$",
}
"""Columns of a history, and what a panel calls each."""


def longest_runs(layout: Layout) -> dict[Setup, list[Cell]]:
    """Return for each model and its data the cells of Adam with the most tokens, one for each
    seed."""
    found: dict[Setup, list[Cell]] = {}
    for cell in layout.plan.cells.values():
        if cell.optimizer.key == ADAM:
            found.setdefault(layout.setups[cell.id], []).append(cell)
    for setup, cells in found.items():
        most = max(cell.n_tokens for cell in cells)
        found[setup] = [cell for cell in cells if cell.n_tokens == most]
    return found


def _by_tokens(cell: Cell, material: Material) -> History:
    """Return the rows of a run's history, each with the tokens that were read until then."""
    batch_tokens = cell.training.batch_sequences * cell.training.seq_len
    rows = run_history(material.runs / cell.id)
    return [{**row, "read": row["step"] * batch_tokens} for row in rows]


def second_moment(material: Material) -> Figure:
    """Draw the paper's Fig. 4 and 5 along training, a line for each model.

    The panels are slope, exponent and R² of the line through Adam's second moment, against the
    tokens read so far.
    """
    layout = material.study.layout
    figure, axes = panels(len(_MOMENT_NUMBERS), columns=3)
    for number, (setup, cells) in enumerate(longest_runs(layout).items()):
        histories = [_by_tokens(cell, material) for cell in cells]
        style = STYLES[number % len(STYLES)] | {"markersize": 3, "linewidth": 0.8}
        label = f"N = {plain(layout.labels[setup])}"
        for ax, column in zip(axes, _MOMENT_NUMBERS, strict=True):
            draw_mean(ax, histories, column, label, style, against="read")
    for ax, label in zip(axes, _MOMENT_NUMBERS.values(), strict=True):
        ax.set(xlabel="tokens read so far", ylabel=label)
        if ax.has_data():
            ax.set_xscale("log")
    if axes[0].has_data():
        axes[0].set_yscale("log")
    add_legend(figure)
    return figure
