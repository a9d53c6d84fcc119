"""Figures of the theory: their names, the toy of Fig. 1, and where the drift of the mean embedding comes from."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.report.style import STYLES, add_legend, page_width, panels, plain
from coupled_adam_bench.report.theory.checks import ZERO_FLOAT64
from coupled_adam_bench.report.theory.moments import draw_second_moment, draw_slopes
from coupled_adam_bench.report.theory.records import DriftRecord, TheoryGroup, read_theory
from coupled_adam_bench.results.groups import Layout
from coupled_adam_bench.study.catalog.names import EMBEDDING, HEAD

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from coupled_adam_bench.tools.theory.toy import Toy

THEORY_FIGURES = {
    "toy": "A toy in two dimensions (Fig. 1): embeddings (dots, with the probability of their tokens), one update of "
    "each by three optimizers, and in black the mean embedding and the sum of the updates. Tokens, probabilities and "
    "hidden state are ours.",
    "second_moment": "Mean squared gradient of each vocabulary row against its token's unigram probability in the "
    "largest run of Adam (Fig. 4), and the straight line fitted to it; the same points and line on linear axes, where "
    "the fit is made and frequent tokens decide R², and on logarithmic ones, where rare tokens can be seen.",
    "second_moment_slope": "Slope of that line against parameters and against tokens (Fig. 5), logarithmic axes; bars: "
    "standard deviation over seeds.",
    "drift": "Norm of the mean embedding's displacement since the start, and of its parts by origin, on a logarithmic "
    "axis that all panels share; a line per seed. The parts are vectors: their norms do not add up.",
}
"""Names and captions of the figures of a plan that checks the theory."""

_WHOLE = {"color": "#bbbbbb", "linestyle": "-", "linewidth": 4.0}
_ORIGINS = {
    "input": ("from the input side", {"color": "#0072B2", "linestyle": "--"}),
    "output": ("from the output side", {"color": "#D55E00", "linestyle": "-"}),
    "decay": ("from weight decay", {"color": "#009E73", "linestyle": ":"}),
}
# As in studies whose optimizers are Adam, Coupled Adam and SGD, in this order.
_TOY_STYLE = {"Adam": 0, "Coupled Adam": 1, "SGD": 2}
_DECADES = 12
"""Decades of the drift that are shown at most."""


def draw_toy(example: "Toy") -> "Figure":
    """Draw the embeddings of the toy and their updates, a panel per optimizer."""
    import numpy as np

    points = example.embeddings_V2
    middle, radius = points.mean(axis=0), float(np.abs(points).max())
    longest = max(float(np.linalg.norm(updates, axis=1).max()) for updates in example.updates.values())
    scale = 1.1 * radius / longest
    figure, axes = panels(1, len(example.updates), height=2.0, sharex=True, sharey=True)

    def arrow(ax: "Axes", start: Any, step: Any, width: float, color: str, label: str) -> None:
        style = {"arrowstyle": "-|>", "color": color, "lw": width, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 7}
        ax.annotate("", xy=start + scale * step, xytext=start, arrowprops=style, gid=label)

    for ax, (name, updates) in zip(axes, example.updates.items(), strict=True):
        ax.axhline(0, color="#cccccc", linewidth=0.6, zorder=0)
        ax.axvline(0, color="#cccccc", linewidth=0.6, zorder=0)
        ax.scatter(*points.T, s=500 * example.probabilities_V, color="#aaaaaa", linewidths=0, zorder=1)
        for point, update, probability in zip(points, updates, example.probabilities_V, strict=True):
            arrow(ax, point, update, 1.5, STYLES[_TOY_STYLE[name]]["color"], "update")
            ax.annotate(f"{probability:g}", point, (0, 14), textcoords="offset points", ha="center", fontsize=8)
        total = example.sums[name]
        relative = float(np.linalg.norm(total) / np.linalg.norm(updates, axis=1).sum())
        is_zero = relative < ZERO_FLOAT64
        if not is_zero:
            arrow(ax, middle, total, 2.2, "black", "sum")
        ax.plot(*middle, marker="o", color="black", markersize=4)
        ax.set_title(name)
        ax.set_xlabel(rf"$\|\Sigma_i u_i\|\,/\,\Sigma_i \|u_i\| = {0 if is_zero else f'{relative:.2f}'}$")
        ax.set_aspect("equal")
        ax.set(xlim=(-1.9 * radius, 1.9 * radius), ylim=(-1.6 * radius, 1.6 * radius), xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    return figure


def _drift_panel(ax: "Axes", drift: DriftRecord) -> list[float]:
    """Draw a matrix of one run; return the last values of its curves."""
    ends = []

    def curve(values: Sequence[float], **style: Any) -> None:
        points = [(step, value) for step, value in zip(drift.step, values, strict=True) if value > 0]
        if points:
            ax.plot(*zip(*points, strict=True), **style)
            ends.append(points[-1][1])

    curve(drift.displacement, label="whole displacement", **_WHOLE)
    for origin, (label, style) in _ORIGINS.items():
        values = getattr(drift, origin)
        if values is not None:
            curve(values, label=label, linewidth=1.2, **style)
    if drift.input is None:
        ax.text(0.97, 0.05, "not split", transform=ax.transAxes, ha="right", fontsize=8)
    return ends


def draw_drift(groups: Sequence[TheoryGroup]) -> "Figure":
    """Draw the drift at the most tokens of the largest size: a column per optimizer, a row per matrix.

    The size is the largest that was measured tied and untied, or without such a one the largest that was measured.
    """
    from matplotlib.figure import Figure

    tyings: dict[tuple[int, str], set[bool]] = {}
    for group in groups:
        if any(record.matrices for record in group.records):
            tyings.setdefault((group.cell.n_tokens, group.shape), set()).add(group.tied)
    chosen = groups[-1]
    for group in groups:
        if len(tyings.get((group.cell.n_tokens, group.shape), ())) >= max(map(len, tyings.values()), default=0):
            chosen = group
    shown = [g for g in groups if (g.cell.n_tokens, g.shape) == (chosen.cell.n_tokens, chosen.shape)]
    optimizers = {group.cell.optimizer.key: group.cell.optimizer.label for group in shown}
    rows = [
        (tied, matrix, label)
        for tied, matrix, label in (
            (True, EMBEDDING, "tied embedding"),
            (False, EMBEDDING, "untied embedding"),
            (False, HEAD, "untied head"),
        )
        if any(group.tied == tied for group in shown)
    ]
    figure = Figure(figsize=(page_width(), 0.9 + max(page_width() / 4, 1.5) * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), len(optimizers), squeeze=False, sharex=True, sharey=True)
    ends: list[float] = []
    for row, (tied, matrix, label) in enumerate(rows):
        axes[row][0].set_ylabel(f"{label}\n$\\|\\Delta\\mu\\|$")
        for column, key in enumerate(optimizers):
            for group in shown:
                if (group.tied, group.cell.optimizer.key) == (tied, key):
                    for record in group.records:
                        if matrix in record.matrices:
                            ends += _drift_panel(axes[row][column], record.matrices[matrix])
    for ax, label in zip(axes[0], optimizers.values(), strict=True):
        ax.set_title(plain(label))
    for ax in axes[-1]:
        ax.set_xlabel("step")
    if ends:
        axes[0][0].set_yscale("log")
        axes[0][0].set_ylim(max(min(ends), max(ends) * 10**-_DECADES) / 10, 3 * max(ends))
    sizes = " / ".join(dict.fromkeys(plain(group.model_label) for group in shown))
    add_legend(figure, f"N = {sizes}, D = {plain(chosen.tokens_label)}")
    return figure


def theory_figures(layout: Layout, runs: Path) -> dict[str, "Figure"]:
    """Return the figures named in ``THEORY_FIGURES``, drawn from what of the plan's cells was measured."""
    from coupled_adam_bench.tools.theory.toy import toy

    groups = read_theory(layout, runs)
    return {
        "toy": draw_toy(toy()),
        "second_moment": draw_second_moment(groups),
        "second_moment_slope": draw_slopes(groups),
        "drift": draw_drift(groups),
    }
