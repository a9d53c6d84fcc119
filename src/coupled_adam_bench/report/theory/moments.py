"""Figures of the second moment: against unigram probability (Fig. 4), and the slope of that line (Fig. 5)."""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

from coupled_adam_bench.report.style import STYLES, panels, plain
from coupled_adam_bench.report.theory.records import Moment, Record, TheoryGroup
from coupled_adam_bench.statistics.t_test import summarize
from coupled_adam_bench.study.catalog.names import ADAM

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _moment_panel(ax: "Axes", moment: Moment, log: bool) -> None:
    import numpy as np

    probability, mean_square = np.asarray(moment.probability), np.asarray(moment.mean_square)
    shown = (probability > 0) & (mean_square > 0) if log else np.isfinite(probability)
    ax.scatter(
        probability[shown], mean_square[shown], s=7, color=STYLES[0]["color"], alpha=0.45, linewidths=0, rasterized=True
    )
    if log:
        ax.set_xscale("log")
        ax.set_yscale("log")
    low, high = ax.get_ylim()
    line = np.geomspace(probability[probability > 0].min(), probability.max(), 400)
    fit = moment.slope * line + moment.intercept
    visible = fit > (low if log else -np.inf)  # a negative intercept leads out of the points' range
    ax.plot(line[visible], fit[visible], color=STYLES[1]["color"], linewidth=1.4)
    if log:
        ax.set_ylim(low, high)
        if left_out := int((~shown).sum()):
            ax.text(
                0.97, 0.03, f"rows of zero,\nnot shown: {left_out:,}", transform=ax.transAxes, ha="right", fontsize=8
            )
    else:
        ax.ticklabel_format(scilimits=(-2, 2), useMathText=True)
        ax.locator_params(nbins=5)
    ax.set_xlabel(r"unigram probability $\tilde{p}_i$")


def draw_second_moment(groups: Sequence[TheoryGroup]) -> "Figure":
    """Draw the second moment against probability for the largest measured cell of Adam, a tied one if there is one.

    The first row has the mean square of the gradients, the second, where it was kept, Adam's own moving average.
    """
    measured = [
        (group.tied, group.cell.n_params, group.cell.n_tokens, -record.cell.seed, index, record.moment, record)
        for index, group in enumerate(groups)
        if group.cell.optimizer.key == ADAM
        for record in group.records
        if record.moment is not None
    ]
    if not measured:
        return panels(1, 1)[0]
    *_, index, moment, record = max(measured, key=lambda item: item[:5])
    rows: list[tuple[str, Moment]] = [(r"$\mathrm{E}[g_i^2]$, mean of the row", moment)]
    if record.adam_moment is not None:
        rows.append((r"Adam's own $\hat{v}_i$, mean of the row", record.adam_moment))
    figure, axes = panels(len(rows), 2, height=2.7)
    figure.set_dpi(200)
    for row, (label, values) in enumerate(rows):
        for column, log in enumerate((False, True)):
            _moment_panel(axes[2 * row + column], values, log)
        axes[2 * row].set_ylabel(label)
        sign = "-" if values.intercept < 0 else "+"
        text = (
            f"${_power(values.slope)}\\,\\tilde{{p}}_i {sign} {_power(abs(values.intercept))}$\n"
            f"$R^2 = {values.r_squared:.3f}$"
        )
        axes[2 * row].text(0.04, 0.96, text, transform=axes[2 * row].transAxes, va="top", color=STYLES[1]["color"])
    axes[0].set_title("linear axes, as fitted")
    axes[1].set_title("logarithmic axes")
    figure.suptitle(_place(groups[index]), fontsize=10)
    return figure


def _power(value: float) -> str:
    """Return a number in three digits and a power of ten, for a formula."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return rf"{mantissa}\times 10^{{{int(exponent)}}}"


def _place(group: TheoryGroup) -> str:
    tying = "tied weights" if group.tied else "untied head"
    return f"N = {plain(group.model_label)}, D = {plain(group.tokens_label)}, {tying}"


def _slope(record: Record) -> float | None:
    return None if record.moment is None else record.moment.slope


def _slope_panel(
    ax: "Axes",
    groups: Sequence[TheoryGroup],
    place: Callable[[TheoryGroup], tuple[int, str]],
    line: Callable[[TheoryGroup], tuple[Hashable, str]],
) -> None:
    """Draw a line for each value of ``line`` (what it shares, its label) and tying; ``place`` is x and its label."""
    lines: dict[tuple[Hashable, bool], list[TheoryGroup]] = {}
    for group in groups:
        lines.setdefault((line(group)[0], group.tied), []).append(group)
    shared = list(dict.fromkeys(key for key, _ in lines))
    for (key, tied), members in lines.items():
        style = STYLES[shared.index(key) % len(STYLES)]
        samples = [summarize(group.values(_slope)) for group in members]
        ax.errorbar(
            [place(group)[0] for group in members],
            [sample.mean for sample in samples],
            yerr=[sample.sd for sample in samples],
            label=f"{plain(line(members[0])[1])}, {'tied' if tied else 'untied'}",
            color=style["color"],
            marker=style["marker"],
            markerfacecolor=style["color"] if tied else "white",
            linestyle="-" if tied else "--",
            markersize=5,
            capsize=2,
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


def draw_slopes(groups: Sequence[TheoryGroup]) -> "Figure":
    """Draw the slope of the fit against parameters (a line per D) and against tokens (a line per N), cells of Adam."""
    figure, (against_params, against_tokens) = panels(1, 2, height=2.8, sharey=True)
    if measured := [group for group in groups if group.cell.optimizer.key == ADAM and group.values(_slope)]:
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
    against_params.set_xlabel("N (parameters)")
    against_tokens.set_xlabel("D (tokens)")
    against_params.set_ylabel(r"slope $A$")
    return figure
