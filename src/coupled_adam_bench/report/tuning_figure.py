"""The figure of the tunings: validation loss against the learning rate of the embedding, and what was chosen."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.report.style import add_legend, optimizer_styles, panels, plain
from coupled_adam_bench.statistics.t_test import summarize
from coupled_adam_bench.study.cells import Cell, readable_count
from coupled_adam_bench.study.plan import Plan
from coupled_adam_bench.study.tuning import Tuning

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

TUNING_FIGURE = {
    "tuning": "Mean validation loss of each candidate (up to 1.5 times that of guessing) against the peak learning "
    "rate of the embedding; the line joins the best of each learning rate, a ring is what was chosen, and a cross at "
    "the top is a candidate of which a seed has diverged; bars: standard deviation over seeds.",
}
"""Name and caption of the figure of a study that tunes."""
_COLUMNS = 2
_AT_TOP = 0.97  # of the height of the axes


def place_of(cell: Cell) -> str:
    """Return what candidates that are drawn together have in common, as a title."""
    size = cell.model.label or readable_count(cell.n_params)
    return f"N = {size}, D = {cell.tokens_label or readable_count(cell.n_tokens)}"


def _places(plan: Plan) -> dict[tuple[str, ...], list[Tuning]]:
    """Return the tunings by model, number of tokens and study."""
    places: dict[tuple[str, ...], list[Tuning]] = {}
    for tuning in plan.tunings.values():
        first = tuning.first
        places.setdefault((first.study.name, first.model.name, str(first.n_tokens)), []).append(tuning)
    return places


def _draw(ax: "Axes", found: "DataFrame", label: str, style: Mapping[str, Any]) -> None:
    """Draw the candidates of one tuning, the rows of its table in the order of the candidates."""
    best: dict[float, float] = {}
    for _, rows in found.groupby("candidate"):
        rate, mean, chosen = (rows[name].iloc[0] for name in ("embedding_learning_rate", "mean_val_loss", "chosen"))
        if math.isnan(mean):
            ax.plot([rate], [_AT_TOP], transform=ax.get_xaxis_transform(), **{**style, "marker": "x", "linestyle": ""})
            continue
        best[rate] = min(mean, best.get(rate, math.inf))
        spread = summarize(rows["val_loss"].to_list()).sd
        ax.errorbar([rate], [mean], yerr=[spread], markersize=4, capsize=2, **{**style, "linestyle": ""})
        if chosen:
            ax.plot([rate], [mean], marker="o", markersize=11, markerfacecolor="none", color=style["color"])
    rates = sorted(best)
    ax.plot(rates, [best[rate] for rate in rates], label=plain(label), markersize=4, **style)


def tuning_figure(plan: Plan, tried: "DataFrame") -> "Figure":
    """Draw the candidates of all tunings, given the rows of ``tuning.csv``: axes for each model and tokens."""
    places = _places(plan)
    n_columns = min(len(places), _COLUMNS)
    figure, axes = panels(-(-len(places) // n_columns), n_columns)
    for unused in axes[len(places) :]:
        unused.remove()
    styles = optimizer_styles(plan)
    for ax, tunings in zip(axes, places.values(), strict=False):
        for tuning in tunings:
            found = tried[tried["tuning"] == tuning.id]
            if len(found):
                _draw(ax, found, tuning.row.label, styles[tuning.row.key])
        ax.set_title(plain(place_of(tunings[0].first)))
        ax.set_xlabel("peak learning rate of the embedding")
        ax.set_ylabel("validation loss (nat/token)")
        if ax.has_data():
            ax.set_xscale("log")
        low, high = ax.dataLim.intervaly
        guessing = math.log(tunings[0].first.vocab_size)
        if low < guessing and high > 1.5 * guessing:  # a candidate that blows up would squeeze the others
            ax.set_ylim(0.97 * low, 1.5 * guessing)
    add_legend(figure)
    return figure
