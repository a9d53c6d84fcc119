"""The paper's Fig. 4 and 5 from histories: the line of Adam's second moment against the probability
of tokens."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from coupled_adam_bench.report.figures import plain
from coupled_adam_bench.report.figures.histories import draw_mean
from coupled_adam_bench.report.figures.style import STYLES, add_legend, panels
from coupled_adam_bench.results.groups import Layout, Setup
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.store.runs import run_history
from coupled_adam_bench.study.catalogue.names import ADAM
from coupled_adam_bench.study.plan.cells import Cell

_NUMBERS = {"moment_slope": "slope $A$", "moment_exponent": "exponent", "moment_r_squared": "$R^2$"}
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


def _history(cell: Cell, material: Material) -> Sequence[dict[str, Any]]:
    """Return the rows of a run's history, each with the tokens that were read until then."""
    batch_tokens = cell.training.batch_sequences * cell.training.seq_len
    rows = run_history(material.runs / cell.id)
    return [{**row, "read": row["step"] * batch_tokens} for row in rows]


def second_moment(material: Material) -> Figure:
    """Draw slope, exponent and R² of the line through Adam's second moment against the tokens read
    so far, a line for each model."""
    layout = material.study.layout
    figure, axes = panels(len(_NUMBERS), columns=3)
    for number, (setup, cells) in enumerate(longest_runs(layout).items()):
        histories = [_history(cell, material) for cell in cells]
        style = STYLES[number % len(STYLES)] | {"markersize": 3, "linewidth": 0.8}
        label = f"N = {plain(layout.labels[setup])}"
        for ax, column in zip(axes, _NUMBERS, strict=True):
            draw_mean(ax, histories, column, label, style, against="read")
    for ax, label in zip(axes, _NUMBERS.values(), strict=True):
        ax.set(xlabel="tokens read so far", ylabel=label)
        if ax.has_data():
            ax.set_xscale("log")
    if axes[0].has_data():
        axes[0].set_yscale("log")
    add_legend(figure)
    return figure
