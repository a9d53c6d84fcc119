"""The figure of calibration against the frequency of tokens in the training text."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.report.band_figure import Seeds
from coupled_adam_bench.report.details import stored_details
from coupled_adam_bench.report.history_figures import Shown
from coupled_adam_bench.report.style import add_legend, optimizer_styles, panels, plain
from coupled_adam_bench.results.groups import Layout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = Mapping[str, Sequence[Any]]
"""What ``evaluation/calibration.py`` keeps of a cell."""
Points = list[tuple[float, float]]


def points(curve: Curve, kind: str) -> Points:
    """Return (count, value) of the bins of seen tokens that have a value of this kind."""
    return [
        (count, value) for count, value in zip(curve["count"], curve[kind], strict=True) if count and value is not None
    ]


def differences(curve: Curve, reference: Curve, kind: str) -> Points:
    """Return (count, difference to the reference) of the bins in which both have a value.

    Cells that were measured on the same text have the same bins, and the frequencies in it cancel.
    """
    ours, theirs = dict(points(curve, kind)), dict(points(reference, kind))
    return [(count, value - theirs[count]) for count, value in ours.items() if count in theirs]


def calibration_by_frequency(layout: Layout, runs: Path, shown: Shown) -> "Figure":
    """Draw the pooled calibration of some cells, and the mean over tokens against that of the first optimizer."""
    by_optimizer: dict[str, dict[Seeds, Curve]] = {cell.optimizer.key: {} for cell in shown.cells}
    labels = {cell.optimizer.key: plain(cell.optimizer.label) for cell in shown.cells}
    for cell, curve in stored_details(layout.plan, runs, shown.cells, "test_loss", "calibration"):
        by_optimizer[cell.optimizer.key][cell.seed, cell.data_seed] = curve
    reference = next(iter(by_optimizer))
    styles = optimizer_styles(layout.plan)
    figure, (whole, difference) = panels(1, 2)
    for key, curves in by_optimizer.items():
        style = {name: value for name, value in styles[key].items() if name != "marker"} | {"linewidth": 0.8}
        for seed, curve in curves.items():
            _plot(whole, points(curve, "pooled_log_ratio"), labels[key], style)
            if seed in by_optimizer[reference]:
                found = differences(curve, by_optimizer[reference][seed], "mean_log_ratio")
                _plot(difference, found, labels[key], style)
    whole.set_ylabel(r"log $\bar{p} / \bar{f}$ (0: calibrated)")
    difference.set_ylabel(f"mean log p, minus {labels[reference]}")
    for ax in (whole, difference):
        ax.axhline(0, color="0.7", linewidth=0.8, zorder=0)
        ax.set_xscale("log")
        ax.set_xlabel("occurrences of the token in the training text")
        ax.set_title(plain(shown.title))
    add_legend(figure)
    return figure


def _plot(ax: Any, found: Points, label: str, style: Mapping[str, Any]) -> None:
    if found:
        ax.plot(*zip(*found, strict=True), label=label, **style)
