"""A plug-in (docs/plugins.md): the differences in loss against the number of tokens, with the lines
that the plug-in ``trend`` fits.

    statistics:
      figures:
        - {name: trend, path: research.plugins.trend_figure.GrowthFigure}
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from research.plugins.trend_lines import predicted, trends

from coupled_adam_bench.report.figures import plain
from coupled_adam_bench.report.figures.style import (
    Style,
    add_legend,
    bars,
    optimizer_styles,
    panels,
    tokens_axis,
    zero_line,
)
from coupled_adam_bench.report.plug_ins import FigurePlugIn
from coupled_adam_bench.results.groups import Group, Layout, layout_of
from coupled_adam_bench.results.sample import summarize
from coupled_adam_bench.results.setups import Setup
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.lines import TOKENS, Trend
from coupled_adam_bench.statistics.student import t_quantile
from coupled_adam_bench.study.catalogue.metrics import LOSS
from coupled_adam_bench.study.plan import Plan

_POINTS = 60
"""Points of a drawn line, whose interval is curved."""


def _difference(study: StudyResults, group: Group, trend: Trend) -> tuple[list[float], float]:
    """Return the differences in a group by seed, and half the length of their 95 % interval."""
    facts = study.at(group, trend.metric)
    differences = facts[trend.optimizer].minus(facts[trend.reference])
    values = list(filter(math.isfinite, differences.values()))
    sample = summarize(values)
    if sample.n < 2:
        return values, 0.0
    return values, t_quantile(sample.n - 1) * sample.sd / math.sqrt(sample.n)


def _draw_differences(
    ax: Axes, study: StudyResults, group: Group, found: Sequence[Trend], styles: Mapping[str, Style]
) -> None:
    """Draw the differences at one number of tokens, a bar for each optimizer."""
    labels = group.optimizer_labels
    having = [trend for trend in found if trend.optimizer in labels]
    for place, trend in enumerate(having):
        values, half = _difference(study, group, trend)
        color = styles[trend.optimizer]["color"]
        ax.bar(place, summarize(values).mean, yerr=half, color=color, alpha=0.7, capsize=2)
    names = [plain(labels[trend.optimizer]) for trend in having]
    ax.set_xticks(range(len(names)), labels=names, rotation=30, ha="right")


def _draw_trend(
    ax: Axes, study: StudyResults, trend: Trend, setup: Setup, label: str, style: Style
) -> None:
    """Draw the differences of one optimizer against tokens, and the line fitted to them."""
    groups = [group for group in trend.groups if group.setup == setup]
    for group in groups:
        values, half = _difference(study, group, trend)
        bars(ax, [group.n_tokens], [values], label, **{**style, "linestyle": "", "yerr": [half]})
    if trend.fit.reason or TOKENS not in trend.terms or not groups:
        return
    counts = [group.n_tokens for group in trend.groups]
    first, last = math.log2(min(counts)), math.log2(max(counts))
    tokens = [2 ** (first + (last - first) * step / (_POINTS - 1)) for step in range(_POINTS)]
    fitted = [predicted(trend, setup.n_params, count) for count in tokens]
    ax.plot(tokens, [value for value, _ in fitted], **{**style, "marker": "", "linewidth": 1})
    lower = [value - half for value, half in fitted]
    upper = [value + half for value, half in fitted]
    ax.fill_between(tokens, lower, upper, color=style["color"], alpha=0.15, linewidth=0)


def trend_table(layout: Layout) -> str | None:
    """Return the name of the first table that has several numbers of tokens for the same model,
    None without one."""
    for name, groups in layout.groups.items():
        if len({group.setup for group in groups}) < len(groups):
            return name
    return None


class GrowthFigure(FigurePlugIn):
    """The differences of the first table that has several numbers of tokens, with intervals."""

    contract = 1
    caption: ClassVar[str] = (
        "Difference in loss, paired by seed, against training tokens; bars: 95 % intervals over"
        " seeds; lines: the mean of the lines of the seeds, each over all sizes, with 95 %"
        " intervals."
    )

    def check(self, plan: Plan) -> None:
        """Refuse a study without several numbers of tokens."""
        if trend_table(layout_of(plan)) is None:
            raise ValueError(
                "no table has several numbers of tokens for the same model; give a block of the"
                " grid with a table two or more `tokens`, or leave out the plug-in"
            )

    def draw(self, material: Material) -> Figure:
        """Return the figure, a panel for each size."""
        study, table = material.study, trend_table(material.study.layout)
        assert table is not None, "check has refused the study"
        groups, styles = study.layout.groups[table], optimizer_styles(material.plan)
        by_size = sorted(groups, key=lambda group: group.setup.n_params)
        setups = {group.setup: f"N = {plain(group.model_label)}" for group in by_size}
        of_table = study.layout.optimizer_labels[table]
        labels = {key: plain(label) for key, label in of_table.items()}
        found = trends(study, table, [LOSS])
        figure, axes = panels(len(setups), columns=3, height=2.0, sharey=True)
        for ax, (setup, title) in zip(axes, setups.items(), strict=True):
            of_setup = [group for group in groups if group.setup == setup]
            zero_line(ax)
            if len(of_setup) == 1:
                _draw_differences(ax, study, of_setup[0], found, styles)
                ax.set(xlabel=f"D = {plain(of_setup[0].tokens_label)}", title=title)
                continue
            for each in found:
                _draw_trend(ax, study, each, setup, labels[each.optimizer], styles[each.optimizer])
            tokens_axis(ax, of_setup)
            ax.set(xlabel="D (tokens)", title=title)
        # With several references no one name would be right for the axis.
        if len({each.reference for each in found}) == 1:
            axes[0].set_ylabel(
                f"loss minus that of {labels[found[0].reference]} (nat/token)", fontsize="small"
            )
        signs: dict[str, Style] = {
            "mean over seeds": {"marker": "o", "linestyle": ""},
            "fitted": {"linewidth": 1},
        }
        add_legend(figure, signs=signs)
        return figure
