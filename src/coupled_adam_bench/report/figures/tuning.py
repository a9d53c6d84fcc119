"""The figure of the tunings: validation loss against the learning rate of the embedding, and what was chosen."""

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from coupled_adam_bench.report.figures import plain
from coupled_adam_bench.report.figures.style import Style, add_legend, bars, cut_off, optimizer_styles, panels
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.tuning import STATISTIC, place_of
from coupled_adam_bench.study.tuning import Tuning

_AT_TOP = 0.97  # of the height of the axes


def _draw(ax: Axes, found: DataFrame, label: str, style: Style) -> None:
    """Draw the candidates of one tuning, the rows of its table in the order of the candidates."""
    best: dict[float, float] = {}
    for _, rows in found.groupby("candidate"):
        rate, mean, chosen = (rows[name].iloc[0] for name in ("embedding_learning_rate", "mean_val_loss", "chosen"))
        if math.isnan(mean):
            ax.plot([rate], [_AT_TOP], transform=ax.get_xaxis_transform(), **{**style, "marker": "x", "linestyle": ""})
            continue
        best[rate] = min(mean, best.get(rate, math.inf))
        bars(ax, [rate], [rows["val_loss"].to_list()], None, **{**style, "linestyle": ""})
        if chosen:
            ax.plot([rate], [mean], marker="o", markersize=11, markerfacecolor="none", color=style["color"])
    rates = sorted(best)
    ax.plot(rates, [best[rate] for rate in rates], label=plain(label), markersize=4, **style)


def tuning(material: Material) -> Figure:
    """Draw the candidates of all tunings, the rows of ``tuning.csv``: axes for each study, model and tokens."""
    tried = material.frame(STATISTIC)
    places: dict[tuple[str, str, int], list[Tuning]] = {}
    for each in material.plan.tunings.values():
        places.setdefault((each.first.study.name, each.first.model.name, each.first.n_tokens), []).append(each)
    figure, axes = panels(len(places))
    styles = optimizer_styles(material.plan)
    for ax, tunings in zip(axes, places.values(), strict=True):
        for each in tunings:
            found = tried[tried["tuning"] == each.id]
            if len(found):
                _draw(ax, found, each.row.label, styles[each.row.key])
        first = tunings[0].first
        ax.set(title=plain(place_of(first)), xlabel="peak learning rate of the embedding")
        ax.set_ylabel("validation loss (nat/token)")
        if ax.has_data():
            ax.set_xscale("log")
        cut_off(ax, math.log(first.vocab_size))
    add_legend(figure)
    return figure
