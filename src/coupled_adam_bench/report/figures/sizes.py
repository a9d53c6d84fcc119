"""Figures of a whole study: its numbers against tokens, parameters, exponents of the scale and
learning rates."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from coupled_adam_bench.report.figures import plain, scaled_places
from coupled_adam_bench.report.figures.style import (
    STYLES,
    Style,
    add_legend,
    axis_label,
    bars,
    curve,
    cut_off,
    optimizer_bars,
    optimizer_styles,
    panels,
    tokens_axis,
)
from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.setups import Setup
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.candidates import STATISTIC, size_and_length
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.study.catalogue.bands import RAREST
from coupled_adam_bench.study.catalogue.metrics import Metric
from coupled_adam_bench.study.plan.tuning import Tuning


def _drawn_groups(study: StudyResults) -> list[Group]:
    """Return the groups to draw against tokens, each place once: from the first of the tables that
    have it.

    A table of many optimizers at one place would squeeze the others; a study of nothing else shows
    it.
    """
    of_few = [
        name for name, table in study.layout.tables.items() if table.comparison != "each_other"
    ]
    places: dict[tuple[Any, ...], Group] = {}
    for name in of_few or study.layout.tables:
        for group in study.layout.groups[name]:
            places.setdefault((group.setup, group.n_tokens), group)
    return sorted(places.values(), key=lambda group: (group.setup.n_params, group.n_tokens))


def _by_optimizer(
    ax: Axes, study: StudyResults, group: Group, metric: Metric, styles: Mapping[str, Style]
) -> None:
    """Draw a metric at one number of tokens: what is a line elsewhere is a bar here."""
    samples, of_labels = {}, {}
    for key, fact in study.at(group, metric).items():
        label = plain(fact.label)
        samples[label], of_labels[label] = fact.sample, styles[key]
    optimizer_bars(ax, samples, metric, of_labels)
    ax.set_xlabel(axis_label(metric, arrow=True))


def _along_tokens(
    ax: Axes,
    study: StudyResults,
    groups: Sequence[Group],
    metric: Metric,
    styles: Mapping[str, Style],
) -> None:
    """Draw a metric against tokens, a line for each optimizer."""
    tokens_axis(ax, groups)
    ends = [group.n_tokens for group in groups]
    ax.set(xlabel="D (tokens)", ylabel=axis_label(metric, arrow=True))
    ax.set_xlim(min(ends) / 1.5, max(ends) * 1.5)
    for key, style in styles.items():
        if having := [group for group in groups if key in group.cells]:
            samples = [list(study.at(group, metric)[key].by_seed.values()) for group in having]
            label = plain(having[0].optimizer_labels[key])
            bars(ax, [group.n_tokens for group in having], samples, label, **style)


def _against_tokens(
    study: StudyResults, names: tuple[str, str], limits: tuple[float, float] | None = None
) -> Figure:
    """Draw two metrics (columns) against tokens for each model, data and recipe (rows)."""
    by_setup: dict[Setup, list[Group]] = {}
    for group in _drawn_groups(study):
        by_setup.setdefault(group.setup, []).append(group)
    figure, axes = panels(2 * max(len(by_setup), 1), height=2.1)
    styles = optimizer_styles(study.plan)
    metrics = [study.layout.metrics[name] for name in names]
    for ax, (groups, metric) in zip(axes, product(by_setup.values(), metrics), strict=False):
        title = f"N = {groups[0].model_label}"
        if len(groups) == 1:
            _by_optimizer(ax, study, groups[0], metric, styles)
            title += f", D = {groups[0].tokens_label}"
        else:
            _along_tokens(ax, study, groups, metric, styles)
            if limits is not None:
                ax.set_ylim(*limits)
        ax.set_title(plain(title))
    add_legend(figure)
    return figure


def loss_accuracy(material: Material) -> Figure:
    """Draw loss and mean accuracy, or without downstream tasks the loss of the rarest tokens,
    against tokens."""
    second = "acc" if "acc" in material.study.layout.metrics else RAREST.metric
    return _against_tokens(material.study, ("loss", second))


def embeddings(material: Material) -> Figure:
    """Draw isotropy and mean-norm ratio against tokens."""
    return _against_tokens(material.study, ("isotropy", "mean_norm_ratio"), limits=(0, 1.02))


TOKENS_PER_PARAMETER = 20
"""The paper's line N = D/20 [P], Fig. 6: about where training takes least compute (Hoffmann et al.
2022)."""


def plane(material: Material) -> Figure:
    """Draw parameters against tokens, a point for each place in its first table, and the line N =
    D/20."""
    figure, (ax,) = panels(1, height=3.0)
    layout, titles = material.study.layout, dict[tuple[int, int], str]()
    for name, groups in layout.groups.items():
        for group in groups:
            titles.setdefault((group.n_tokens, group.setup.n_params), layout.tables[name].title)
    points: dict[str, list[tuple[int, int]]] = {}
    for place in sorted({(cell.n_tokens, cell.n_params) for cell in material.plan.cells.values()}):
        points.setdefault(titles.get(place, "no table"), []).append(place)
    for (title, places), style in zip(points.items(), STYLES * len(points), strict=False):
        curve(ax, places, plain(title), **{**style, "linestyle": "", "markersize": 6})
    low, high = ax.dataLim.intervalx
    line = [(end, end / TOKENS_PER_PARAMETER) for end in (low / 2, high * 2)]
    curve(ax, line, f"N = D/{TOKENS_PER_PARAMETER}", color="0.5", linewidth=0.8, zorder=0)
    ax.set(xscale="log", yscale="log", xlabel="D (tokens)", ylabel="N (parameters)")
    add_legend(figure)
    return figure


def scale(material: Material) -> Figure:
    """Draw loss and isotropy against the exponent n, a line for each place; a cell without a value
    leaves a gap."""
    figure, axes = panels(2)
    layout, metrics = (
        material.study.layout,
        [material.study.layout.metrics[name] for name in ("loss", "isotropy")],
    )
    for index, exponents in enumerate(scaled_places(material.plan)):
        first = next(iter(exponents.values()))[0]
        tokens = first.tokens_label or f"{first.n_tokens:,}"
        label = plain(f"N = {layout.labels[layout.setups[first.id]]}, D = {tokens}")
        for ax, metric in zip(axes, metrics, strict=True):
            samples = []
            for cells in exponents.values():
                samples.append([material.study.value(cell, metric) for cell in cells])
            bars(ax, list(exponents), samples, label, **STYLES[index % len(STYLES)])
    for ax, metric in zip(axes, metrics, strict=True):
        ax.set_ylabel(axis_label(metric, arrow=True))
        ax.set_xlabel(r"exponent $n$ of the scale $2^{-n}$")
        ax.xaxis.get_major_locator().set_params(integer=True)
    add_legend(figure)
    return figure


_AT_TOP = 0.97  # of the height of the axes
_RING: Style = {"marker": "o", "markersize": 11, "markerfacecolor": "none", "linestyle": ""}
_CROSS: Style = {"marker": "x", "linestyle": ""}
_SIGNS: Mapping[str, Style] = {"chosen": {**_RING, "markersize": 8}, "a seed diverged": _CROSS}
"""What the signs of the figure of tunings mean."""


def _draw(ax: Axes, found: DataFrame, label: str, style: Style) -> None:
    """Draw the candidates of one tuning, the rows of its table in the order of the candidates."""
    best: dict[float, float] = {}
    for _, rows in found.groupby("candidate"):
        rate, mean, chosen = (
            rows[name].iloc[0] for name in ("embedding_learning_rate", "mean_val_loss", "chosen")
        )
        if math.isnan(mean):
            ax.plot(
                [rate],
                [_AT_TOP],
                transform=ax.get_xaxis_transform(),
                **{**style, **_CROSS},
            )
            continue
        best[rate] = min(mean, best.get(rate, math.inf))
        bars(ax, [rate], [rows["val_loss"].to_list()], None, **{**style, "linestyle": ""})
        if chosen:
            ax.plot([rate], [mean], color=style["color"], **_RING)
    rates = sorted(best)
    ax.plot(rates, [best[rate] for rate in rates], label=plain(label), markersize=4, **style)


def tuning(material: Material) -> Figure:
    """Draw the candidates of all tunings, the rows of ``tuning.csv``: axes for each study, model
    and tokens."""
    tried = material.frame(STATISTIC)
    places: dict[tuple[str, str, int], list[Tuning]] = {}
    for each in material.plan.tunings.values():
        places.setdefault(
            (each.first.study.name, each.first.model.name, each.first.n_tokens), []
        ).append(each)
    # Trials of one place share its axes: they compete with the same tokens.
    figure, axes = panels(len(places))
    styles = optimizer_styles(material.plan)
    for ax, tunings in zip(axes, places.values(), strict=True):
        for each in tunings:
            found = tried[tried["tuning"] == each.id]
            if len(found):
                _draw(ax, found, each.row.label, styles[each.row.key])
        first = tunings[0].first
        ax.set(title=plain(size_and_length(first)), xlabel="peak learning rate of the embedding")
        ax.set_ylabel("validation loss (nat/token)")
        if ax.has_data():
            ax.set_xscale("log")
        cut_off(ax, math.log(first.vocab_size))
    add_legend(figure, signs=_SIGNS)
    return figure
