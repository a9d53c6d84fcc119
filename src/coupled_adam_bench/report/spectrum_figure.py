"""The figure of the singular values of embeddings, and of their norms against the frequency of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.report.details import stored_details
from coupled_adam_bench.report.history_figures import Shown
from coupled_adam_bench.report.style import RC, STYLES, add_legend, optimizer_styles, panels, plain
from coupled_adam_bench.results.groups import Layout
from coupled_adam_bench.store.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MATRIX = "embeddings"


@dataclass(frozen=True)
class Line:
    """A matrix as it is drawn: its ``detail`` is what ``evaluation/matrix_geometry.py`` keeps of it."""

    label: str
    style: dict[str, str]
    detail: dict[str, Any]


def draw_spectrum(lines: Sequence[Line], title: str = "") -> "Figure":
    """Draw the singular values over the largest one, and the mean norm of tokens against their count if it is known."""
    figure, (spectrum, norms) = panels(1, 2)
    for line in lines:
        style = {name: value for name, value in line.style.items() if name != "marker"} | {"linewidth": "0.8"}
        singular = line.detail["singular_values"]
        if singular and singular[0] > 0:  # neither NaN nor all zero
            shares = [(place, value / singular[0]) for place, value in enumerate(singular, 1) if value > 0]
            spectrum.plot(*zip(*shares, strict=True), label=plain(line.label), **style)
        curve = line.detail.get("norm_frequency", {"count": [], "mean_norm": []})
        points = [point for point in zip(curve["count"], curve["mean_norm"], strict=True) if point[0] > 0]
        if points:
            norms.plot(*zip(*points, strict=True), label=plain(line.label), **style)
    for ax, label in ((spectrum, "singular value / largest"), (norms, r"mean $\|e\|$")):
        ax.set_xscale("log")
        ax.set_ylabel(label)
        ax.set_title(plain(title))
        if not ax.has_data():
            ax.text(0.5, 0.5, "no data", transform=ax.transAxes, ha="center")
    spectrum.set_yscale("log")
    spectrum.set_xlabel("number of the singular value")
    norms.set_xlabel("occurrences of the token in the text")
    add_legend(figure)
    return figure


def spectrum_of_study(layout: Layout, runs: Path, shown: Shown) -> "Figure":
    """Draw the embeddings of some cells of a study; a cell that is not measured, or diverged, has no line."""
    styles = optimizer_styles(layout.plan)
    lines = [
        Line(cell.optimizer.label, styles[cell.optimizer.key], matrices[_MATRIX])
        for cell, matrices in stored_details(layout.plan, runs, shown.cells, "embeddings", "matrices")
        if _MATRIX in matrices
    ]
    return draw_spectrum(lines, shown.title)


def write_spectrum_figure(details: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw matrices by their labels into a file, whose ending says its format: png, svg or pdf."""
    from matplotlib import rc_context

    lines = [Line(label, STYLES[index % len(STYLES)], detail) for index, (label, detail) in enumerate(details.items())]
    with rc_context(RC), atomic_path(path) as temporary:
        draw_spectrum(lines).savefig(temporary, format=path.suffix.removeprefix("."), dpi=150)
