"""Figures of a whole study: its numbers against training tokens, parameters and exponents of the scale."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coupled_adam_bench.report.figures import plain, scaled_places, trend_table
from coupled_adam_bench.report.figures.style import (
    STYLES,
    Style,
    add_legend,
    axis_label,
    bars,
    grid,
    is_narrow,
    optimizer_styles,
    panels,
    tokens_axis,
    zero_line,
)
from coupled_adam_bench.results.groups import Group, Layout, Setup
from coupled_adam_bench.results.pairs import paired_values
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.regression import TOKENS, Trend, t_quantile, trends
from coupled_adam_bench.statistics.scores import LOSS
from coupled_adam_bench.statistics.t_test import summarize
from coupled_adam_bench.study.catalog.bands import RAREST
from coupled_adam_bench.study.catalog.metrics import METRICS

_MAX_INCHES = 8.5
"""The height that a page of an article leaves to a figure."""


def _drawn_groups(study: StudyResults) -> list[Group]:
    """Return the groups to draw against tokens, each place once: from the first of the tables that have it.

    A table of many optimizers at one place would squeeze the others; a study of nothing else shows it.
    """
    of_few = [name for name, table in study.tables.items() if table.comparison != "each_other"]
    places: dict[tuple[Any, ...], Group] = {}
    for name in of_few or study.tables:
        for group in study.groups[name]:
            places.setdefault((group.setup, group.n_tokens), group)
    return sorted(places.values(), key=lambda group: group.setup.n_params)


def _sizes(groups: Sequence[Group]) -> tuple[dict[Setup, str], bool]:
    """Return the setups of groups with their label, and whether they are too many to stand beside each other."""
    setups = {group.setup: f"N = {plain(group.model_label)}" for group in groups}
    return setups, max(len(setups), 1) > (1 if is_narrow() else 4)


def _against_tokens(study: StudyResults, names: tuple[str, str], shared_scale: bool) -> Figure:
    """Draw two metrics (rows) against tokens for each model, data and recipe (columns)."""
    shown = _drawn_groups(study)
    setups, below = _sizes(shown)
    n_setups, styles = max(len(setups), 1), optimizer_styles(study.plan)
    metrics = [study.layout.metrics[name] for name in names]
    inches = min(0.5 + (0.75 if is_narrow() else 1) * 2.1 * (n_setups if below else 2), _MAX_INCHES)
    # Where the sizes do not fit beside each other they stand below each other: the same panels, rows for columns.
    if below:
        figure, axes = grid(n_setups, 2, inches, sharex="row", sharey="col" if shared_scale else "none")
        axes = axes.T
    else:
        figure, axes = grid(2, n_setups, inches, sharex="col", sharey="row" if shared_scale else "none")
    for column, (setup, label) in enumerate(setups.items()):
        groups = sorted((group for group in shown if group.setup == setup), key=lambda group: group.n_tokens)
        for row, (ax, metric) in enumerate(zip(axes[:, column], metrics, strict=True)):
            if below or row == 0:
                ax.set_title(label)
            if (column == n_setups - 1) if below else row == 1:
                ax.set_xlabel("D (tokens)")
            tokens_axis(ax, groups)
            ax.set_xlim(groups[0].n_tokens / 1.5, groups[-1].n_tokens * 1.5)
            for key, style in styles.items():
                if having := [group for group in groups if key in group.cells]:
                    samples = [study.samples(group, metric)[key] for group in having]
                    label_of = plain(having[0].optimizer_labels[key])
                    bars(ax, [group.n_tokens for group in having], samples, label_of, **style)
    for row, metric in enumerate(metrics):
        for ax in axes[row] if below else axes[row][:1]:
            ax.set_ylabel(axis_label(metric, arrow=True))
    add_legend(figure)
    return figure


def loss_accuracy(material: Material) -> Figure:
    """Draw loss and mean accuracy, or without downstream tasks the loss of the rarest tokens, against tokens."""
    second = "acc" if "acc" in material.study.layout.metrics else RAREST.metric
    return _against_tokens(material.study, ("loss", second), shared_scale=False)


def embeddings(material: Material) -> Figure:
    """Draw isotropy and mean-norm ratio against tokens."""
    return _against_tokens(material.study, ("isotropy", "mean_norm_ratio"), shared_scale=True)


TOKENS_PER_PARAMETER = 20
"""The paper's line N = D/20 [P], Fig. 6: about where training takes least compute (Hoffmann et al. 2022)."""


def _places(layout: Layout) -> dict[str, list[tuple[int, int]]]:
    """Return (tokens, parameters) of the cells by the title of the first table that has them, each place once."""
    title_of: dict[tuple[int, int], str] = {}
    for name, groups in layout.groups.items():
        for group in groups:
            title_of.setdefault((group.n_tokens, group.setup.n_params), layout.tables[name].title)
    places: dict[str, list[tuple[int, int]]] = {}
    for place in sorted({(cell.n_tokens, cell.n_params) for cell in layout.plan.cells.values()}):
        places.setdefault(title_of.get(place, "no table"), []).append(place)
    return places


def plane(material: Material) -> Figure:
    """Draw parameters against tokens, a point for each place with runs, and the line N = D/20."""
    figure, (ax,) = panels(1, 1, height=3.0)
    points = _places(material.study.layout)
    for (title, places), style in zip(points.items(), STYLES * len(points), strict=False):
        ax.plot(*zip(*places, strict=True), label=plain(title), **{**style, "linestyle": "", "markersize": 6})
    tokens = [place[0] for places in points.values() for place in places]
    ends = (min(tokens) / 2, max(tokens) * 2)
    line = [end / TOKENS_PER_PARAMETER for end in ends]
    ax.plot(ends, line, color="0.5", linewidth=0.8, zorder=0, label=f"N = D/{TOKENS_PER_PARAMETER}")
    ax.set(xscale="log", yscale="log", xlabel="D (tokens)", ylabel="N (parameters)")
    add_legend(figure)
    return figure


def scale(material: Material) -> Figure:
    """Draw loss and isotropy against the exponent n, a line for each place; a cell without a value leaves a gap."""
    figure, axes = panels(1, 2)
    layout, metrics = material.study.layout, [material.study.layout.metrics[name] for name in ("loss", "isotropy")]
    for index, exponents in enumerate(scaled_places(material.plan)):
        first = next(iter(exponents.values()))[0]
        tokens = first.tokens_label or f"{first.n_tokens:,}"
        label = plain(f"N = {layout.labels[layout.setups[first.id]]}, D = {tokens}")
        for ax, metric in zip(axes, metrics, strict=True):
            values = material.study.values
            samples = [[values.get((cell.id, metric.name), math.nan) for cell in cells] for cells in exponents.values()]
            bars(ax, list(exponents), samples, label, **STYLES[index % len(STYLES)])
    for ax, metric in zip(axes, metrics, strict=True):
        ax.set_ylabel(axis_label(metric, arrow=True))
        ax.set_xlabel(r"exponent $n$ of the scale $2^{-n}$")
        ax.xaxis.get_major_locator().set_params(integer=True)
    add_legend(figure)
    return figure


_POINTS = 60
"""Points of a drawn line, whose interval is curved."""


def _draw_trend(ax: Axes, study: StudyResults, trend: Trend, setup: Setup, label: str, style: Style) -> None:
    groups = [group for group in trend.groups if group.setup == setup]
    for group in groups:
        pair = paired_values(study, group, trend.metric, trend.optimizer, trend.reference)
        values = list(pair.differences.values())
        sample = summarize(values)
        half = t_quantile(sample.n - 1) * sample.sd / math.sqrt(sample.n) if sample.n > 1 else 0.0
        bars(ax, [group.n_tokens], [values], label, **{**style, "linestyle": "", "yerr": [half]})
    if trend.fit.reason or TOKENS not in trend.terms or not groups:
        return
    first, last = (math.log2(end(group.n_tokens for group in trend.groups)) for end in (min, max))
    tokens = [2 ** (first + (last - first) * step / (_POINTS - 1)) for step in range(_POINTS)]
    fitted = [trend.predicted(setup.n_params, count) for count in tokens]
    ax.plot(tokens, [value for value, _ in fitted], **{**style, "marker": "", "linewidth": 1})
    lower, upper = [value - half for value, half in fitted], [value + half for value, half in fitted]
    ax.fill_between(tokens, lower, upper, color=style["color"], alpha=0.15, linewidth=0)


def trend(material: Material) -> Figure:
    """Draw the differences in loss of the first table with several tokens, a panel for each size, with intervals."""
    study, table = material.study, trend_table(material.study.layout)
    assert table is not None, "a study without such a table has no figure of it"
    groups, styles = study.groups[table], optimizer_styles(material.plan)
    setups, below = _sizes(sorted(groups, key=lambda group: group.setup.n_params))
    labels = {key: plain(label) for group in groups for key, label in group.optimizer_labels.items()}
    found = trends(study, table, [METRICS[LOSS]])
    n_rows, n_columns = (len(setups), 1) if below else (1, len(setups))
    figure, axes = grid(n_rows, n_columns, 0.6 + 2 * n_rows, sharex="col", sharey=True)
    for ax, (setup, title) in zip(axes.flat, setups.items(), strict=True):
        for each in found:
            _draw_trend(ax, study, each, setup, labels[each.optimizer], styles[each.optimizer])
        zero_line(ax)
        tokens_axis(ax, [group for group in groups if group.setup == setup])
        ax.set(xlabel="D (tokens)", title=title)
    if len({each.reference for each in found}) == 1:
        axes[0][0].set_ylabel(f"loss minus that of {labels[found[0].reference]} (nat/token)", fontsize=8)
    add_legend(figure)
    return figure
