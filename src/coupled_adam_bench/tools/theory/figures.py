"""Figures of the theory: the toy of Fig. 1, the second moment of Fig. 4 and 5, and where the drift
comes from."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from coupled_adam_bench.report.figures import plain
from coupled_adam_bench.report.figures.style import (
    STYLES,
    add_legend,
    bars,
    curve,
    grid,
    page_width,
    panels,
)
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.study.catalog.names import ADAM, EMBEDDING, HEAD
from coupled_adam_bench.tools.theory.records import ZERO_FLOAT64, TheoryGroup, read_theory

Array = NDArray[np.float64]
_SLOPE = ("second_moment", "slope")
# As in studies whose optimizers are Adam, Coupled Adam and SGD, in this order.
_TOY_STYLE = {"Adam": 0, "Coupled Adam": 1, "SGD": 2}


@dataclass(frozen=True)
class Toy:
    """The arrays of the toy of Fig. 1. The data of the paper's figure were not available; these are
    ours [I].

    Shapes: V tokens in 2 dimensions.
    """

    embeddings_V2: Array  # noqa: N815
    hidden_2: Array
    probabilities_V: Array  # noqa: N815
    """Unigram probabilities of the targets."""
    updates: dict[str, Array]
    """Update of each optimizer, shape V2, scaled to a mean length of 1."""
    sums: dict[str, Array]
    """Sum of each optimizer's updates over the tokens, shape (2,)."""


def toy() -> Toy:
    """Return updates of SGD, Adam and Coupled Adam for four tokens around the origin and one hidden
    state.

    With targets t drawn from p and predictions q = softmax(E h), a token's gradient is g_i =
    -(delta_it - q_i) h. Its mean is (q_i - p_i) h. Its mean square, over the two coordinates as in
    Fig. 4, is v_i = (p_i (1 - q_i)^2 + (1 - p_i) q_i^2) |h|^2 / 2. Adam's moments converge to these
    two.
    """
    angles_V = np.pi / 4 + np.pi / 2 * np.arange(4)
    embeddings_V2 = np.stack([np.cos(angles_V), np.sin(angles_V)], axis=1)
    hidden_2 = np.array([0.4, 0.2])
    p_V = np.array([0.6, 0.25, 0.1, 0.05])
    q_V = np.exp(embeddings_V2 @ hidden_2)
    q_V /= q_V.sum()
    mean_gradient_V2 = (q_V - p_V)[:, None] * hidden_2
    v_V = (p_V * (1 - q_V) ** 2 + (1 - p_V) * q_V**2) * (hidden_2 @ hidden_2) / 2
    denominators = {
        "SGD": np.ones(4),
        "Adam": np.sqrt(v_V),
        "Coupled Adam": np.full(4, np.sqrt(v_V.mean())),
    }
    updates = {}
    for name, denominator_V in denominators.items():
        update_V2 = -mean_gradient_V2 / denominator_V[:, None]
        updates[name] = update_V2 / np.linalg.norm(update_V2, axis=1).mean()
    sums = {name: update_V2.sum(axis=0) for name, update_V2 in updates.items()}
    return Toy(embeddings_V2, hidden_2, p_V, updates, sums)


def _arrow(ax: Axes, start: Any, end: Any, width: float, color: str, kind: str) -> None:
    style = {
        "arrowstyle": "-|>",
        "color": color,
        "lw": width,
        "shrinkA": 0,
        "shrinkB": 0,
        "mutation_scale": 7,
    }
    ax.annotate("", xy=end, xytext=start, arrowprops=style, gid=kind)


def draw_toy(_material: Material | None = None) -> Figure:
    """Draw the embeddings of the toy and their updates, a panel per optimizer."""
    example = toy()
    points = example.embeddings_V2
    middle, radius = points.mean(axis=0), float(np.abs(points).max())
    scale = (
        1.1
        * radius
        / max(float(np.linalg.norm(updates, axis=1).max()) for updates in example.updates.values())
    )
    figure, axes = panels(len(example.updates), 3, height=2.0, sharex=True, sharey=True)
    for ax, (name, updates) in zip(axes, example.updates.items(), strict=True):
        ax.axhline(0, color="#cccccc", linewidth=0.6, zorder=0)
        ax.axvline(0, color="#cccccc", linewidth=0.6, zorder=0)
        ax.scatter(
            *points.T, s=500 * example.probabilities_V, color="#aaaaaa", linewidths=0, zorder=1
        )
        for point, update, probability in zip(
            points, updates, example.probabilities_V, strict=True
        ):
            _arrow(
                ax, point, point + scale * update, 1.5, STYLES[_TOY_STYLE[name]]["color"], "update"
            )
            ax.annotate(
                f"{probability:g}",
                point,
                (0, 14),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
        total = example.sums[name]
        relative = float(np.linalg.norm(total) / np.linalg.norm(updates, axis=1).sum())
        is_zero = relative < ZERO_FLOAT64
        if not is_zero:
            _arrow(ax, middle, middle + scale * total, 2.2, "black", "sum")
        ax.plot(*middle, marker="o", color="black", markersize=4)
        ax.set_title(name)
        ax.set_xlabel(
            rf"$\|\Sigma_i u_i\|\,/\,\Sigma_i \|u_i\| = {0 if is_zero else f'{relative:.2f}'}$"
        )
        ax.set_aspect("equal")
        ax.set(
            xlim=(-1.9 * radius, 1.9 * radius),
            ylim=(-1.6 * radius, 1.6 * radius),
            xticks=[],
            yticks=[],
        )
        ax.spines[:].set_visible(False)
    return figure


def _moment_panel(ax: Axes, moment: Mapping[str, Any], log: bool) -> None:
    probability, mean_square = (np.asarray(moment[name]) for name in ("probability", "mean_square"))
    shown = (probability > 0) & (mean_square > 0) if log else np.isfinite(probability)
    dots: dict[str, Any] = {
        "s": 7,
        "color": STYLES[0]["color"],
        "alpha": 0.45,
        "linewidths": 0,
        "rasterized": True,
    }
    ax.scatter(probability[shown], mean_square[shown], **dots)
    if log:
        ax.set_xscale("log")
        ax.set_yscale("log")
    low, high = ax.get_ylim()
    line = np.geomspace(probability[probability > 0].min(), probability.max(), 400)
    fit = moment["slope"] * line + moment["intercept"]
    visible = fit > (low if log else -np.inf)  # a negative intercept leads out of the points' range
    ax.plot(line[visible], fit[visible], color=STYLES[1]["color"], linewidth=1.4)
    if log:
        ax.set_ylim(low, high)
        if left_out := int((~shown).sum()):
            text = f"rows of zero,\nnot shown: {left_out:,}"
            ax.text(0.97, 0.03, text, transform=ax.transAxes, ha="right", fontsize=8)
    else:
        ax.ticklabel_format(scilimits=(-2, 2), useMathText=True)
        ax.locator_params(nbins=5)
    ax.set_xlabel(r"unigram probability $\tilde{p}_i$")


def draw_second_moment(groups: Sequence[TheoryGroup]) -> Figure:
    """Draw the second moment against probability for the largest measured cell of Adam, a tied one
    if there is one.

    The first row has the mean square of the gradients, the second, where it was kept, Adam's own
    moving average.
    """
    measured = [
        (group.tied, group.cell.n_params, group.cell.n_tokens, -record.cell.seed, index, record)
        for index, group in enumerate(groups)
        if group.cell.optimizer.key == ADAM
        for record in group.records
        if record.find("second_moment")
    ]
    if not measured:
        return panels(1)[0]
    *_, index, record = max(measured, key=lambda item: item[:5])
    labels = {
        "second_moment": r"$\mathrm{E}[g_i^2]$",
        "second_moment_adam": r"Adam's own $\hat{v}_i$",
    }
    rows = [
        (f"{label}, mean of the row", record.find(name))
        for name, label in labels.items()
        if record.find(name)
    ]
    figure, axes = panels(2 * len(rows), height=2.7)
    figure.set_dpi(200)
    for row, (label, moment) in enumerate(rows):
        linear = axes[2 * row]
        for ax, log in ((linear, False), (axes[2 * row + 1], True)):
            _moment_panel(ax, moment, log)
        linear.set_ylabel(label)
        sign = "-" if moment["intercept"] < 0 else "+"
        text = (
            f"${_power(moment['slope'])}\\,\\tilde{{p}}_i {sign}"
            f" {_power(abs(moment['intercept']))}$\n$R^2 = {moment['r_squared']:.3f}$"
        )
        linear.text(
            0.04, 0.96, text, transform=linear.transAxes, va="top", color=STYLES[1]["color"]
        )
    axes[0].set_title("linear axes, as fitted")
    axes[1].set_title("logarithmic axes")
    group = groups[index]
    tying = "tied weights" if group.tied else "untied head"
    figure.suptitle(
        f"N = {plain(group.model_label)}, D = {plain(group.tokens_label)}, {tying}", fontsize=10
    )
    return figure


def _power(value: float) -> str:
    """Return a number in three digits and a power of ten, for a formula."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return rf"{mantissa}\times 10^{{{int(exponent)}}}"


def _slope_panel(
    ax: Axes,
    groups: Sequence[TheoryGroup],
    place: Callable[[TheoryGroup], tuple[int, str]],
    line: Callable[[TheoryGroup], tuple[Hashable, str]],
) -> None:
    """Draw a line for each value of ``line`` (what it shares, its label) and tying; ``place`` is x
    and its label."""
    lines: dict[tuple[Hashable, bool], list[TheoryGroup]] = {}
    for group in groups:
        lines.setdefault((line(group)[0], group.tied), []).append(group)
    shared = list(dict.fromkeys(key for key, _ in lines))
    for (key, tied), members in lines.items():
        style = STYLES[shared.index(key) % len(STYLES)] | {"linestyle": "-" if tied else "--"}
        label = f"{plain(line(members[0])[1])}, {'tied' if tied else 'untied'}"
        face = style["color"] if tied else "white"
        places = [place(group)[0] for group in members]
        bars(
            ax,
            places,
            [group.values(*_SLOPE) for group in members],
            label,
            **style,
            markerfacecolor=face,
            markersize=5,
        )
    # An untied model stands close to its tied twin: two labels would overlap.
    labelled = [group for group in groups if group.tied] or groups
    ticks = {place(group)[0]: plain(place(group)[1]) for group in labelled}
    ends = [place(group)[0] for group in groups]
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks(list(ticks), labels=list(ticks.values()))
    ax.xaxis.minorticks_off()
    ax.set_xlim(min(ends) / 1.4, max(ends) * 1.4)
    ax.legend(frameon=False, fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def draw_slopes(groups: Sequence[TheoryGroup]) -> Figure:
    """Draw the slope of the fit against parameters (a line per D) and against tokens (a line per
    N), cells of Adam."""
    figure, (against_params, against_tokens) = panels(2, height=2.8, sharey=True)
    if measured := [
        group for group in groups if group.cell.optimizer.key == ADAM and group.values(*_SLOPE)
    ]:
        _slope_panel(
            against_params,
            measured,
            lambda group: (group.cell.n_params, group.model_label),
            lambda group: (group.cell.n_tokens, f"D = {group.tokens_label}"),
        )
        _slope_panel(
            against_tokens,
            measured,
            lambda group: (group.cell.n_tokens, group.tokens_label),
            lambda group: (group.shape, f"N = {group.model_label}"),
        )
    against_params.set(xlabel="N (parameters)", ylabel=r"slope $A$")
    against_tokens.set_xlabel("D (tokens)")
    return figure


_CURVES = {
    "displacement": (
        "whole displacement",
        {"color": "#bbbbbb", "linestyle": "-", "linewidth": 4.0},
    ),
    "input": ("from the input side", {"color": "#0072B2", "linestyle": "--", "linewidth": 1.2}),
    "output": ("from the output side", {"color": "#D55E00", "linestyle": "-", "linewidth": 1.2}),
    "decay": ("from weight decay", {"color": "#009E73", "linestyle": ":", "linewidth": 1.2}),
}
_MATRICES = (
    (True, EMBEDDING, "tied embedding"),
    (False, EMBEDDING, "untied embedding"),
    (False, HEAD, "untied head"),
)
_DECADES = 12
"""Decades of the drift that are shown at most."""


def _drift_panel(ax: Axes, drift: Mapping[str, Any]) -> list[float]:
    """Draw a matrix of one run; return the last values of its curves."""
    ends = []
    for part, (label, style) in _CURVES.items():
        values = drift[part] or [math.nan] * len(drift["step"])
        if points := [
            (step, value) for step, value in zip(drift["step"], values, strict=True) if value > 0
        ]:
            curve(ax, points, label, **style)
            ends.append(points[-1][1])
    if drift["input"] is None:
        ax.text(0.97, 0.05, "not split", transform=ax.transAxes, ha="right", fontsize=8)
    return ends


def _largest_twins(groups: Sequence[TheoryGroup]) -> list[TheoryGroup]:
    """Return the groups of the largest size measured tied and untied, or else of the largest that
    was measured."""
    tyings: dict[tuple[int, str], set[bool]] = {}
    for group in groups:
        if any(record.matrices for record in group.records):
            tyings.setdefault(group.size, set()).add(group.tied)
    most = max(map(len, tyings.values()), default=0)
    chosen = [group for group in groups if len(tyings.get(group.size, ())) >= most][-1]
    return [group for group in groups if group.size == chosen.size]


def draw_drift(groups: Sequence[TheoryGroup]) -> Figure:
    """Draw the drift at the most tokens of the largest size: a column per optimizer, a row per
    matrix."""
    shown = _largest_twins(groups)
    optimizers = {group.cell.optimizer.key: group.cell.optimizer.label for group in shown}
    rows = [row for row in _MATRICES if any(group.tied == row[0] for group in shown)]
    inches = 0.9 + max(page_width() / 4, 1.5) * len(rows)
    figure, axes = grid(len(rows), len(optimizers), inches, sharex=True, sharey=True)
    ends: list[float] = []
    for row, (tied, matrix, label) in enumerate(rows):
        axes[row][0].set_ylabel(f"{label}\n$\\|\\Delta\\mu\\|$")
        for column, key in enumerate(optimizers):
            of_panel = [
                group for group in shown if (group.tied, group.cell.optimizer.key) == (tied, key)
            ]
            for record in (
                record
                for group in of_panel
                for record in group.records
                if matrix in record.matrices
            ):
                ends += _drift_panel(axes[row][column], record.matrices[matrix])
    for ax, label in zip(axes[0], optimizers.values(), strict=True):
        ax.set_title(plain(label))
    for ax in axes[-1]:
        ax.set_xlabel("step")
    if ends:
        axes[0][0].set_yscale("log")
        axes[0][0].set_ylim(max(min(ends), max(ends) * 10**-_DECADES) / 10, 3 * max(ends))
    sizes = " / ".join(dict.fromkeys(plain(group.model_label) for group in shown))
    add_legend(figure, f"N = {sizes}, D = {plain(shown[0].tokens_label)}")
    return figure


def second_moment(material: Material) -> Figure:
    """Draw the second moment against probability in the largest cell of Adam that was measured."""
    return draw_second_moment(read_theory(material.study.layout, material.runs))


def second_moment_slope(material: Material) -> Figure:
    """Draw the slope of the second moment against parameters and tokens."""
    return draw_slopes(read_theory(material.study.layout, material.runs))


def drift(material: Material) -> Figure:
    """Draw the drift of the mean embedding at the largest size."""
    return draw_drift(read_theory(material.study.layout, material.runs))
