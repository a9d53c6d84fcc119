"""The figure of the trend: the difference in loss to the first optimizer against tokens, with the fitted lines."""

import math
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.report.style import add_legend, is_narrow, optimizer_styles, page_width, plain
from coupled_adam_bench.results.groups import Layout, Setup
from coupled_adam_bench.results.pairs import paired_values
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.regression import TOKENS, Trend, t_quantile, trends
from coupled_adam_bench.statistics.scores import LOSS
from coupled_adam_bench.statistics.t_test import summarize
from coupled_adam_bench.study.catalog.metrics import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 60
"""Points of a drawn line, whose interval is curved."""


def trend_table(layout: Layout) -> str | None:
    """Return the name of the first table that has several numbers of tokens for the same model, None without one."""
    for name, groups in layout.groups.items():
        if len({group.setup for group in groups}) < len(groups):
            return name
    return None


def _draw(ax: "Axes", study: StudyResults, trend: Trend, setup: Setup, label: str, style: Any) -> None:
    groups = [group for group in trend.groups if group.setup == setup]
    for group in groups:
        pair = paired_values(study, group, trend.metric, trend.optimizer, trend.reference)
        sample = summarize(list(pair.differences.values()))
        half = t_quantile(sample.n - 1) * sample.sd / math.sqrt(sample.n) if sample.n > 1 else 0.0
        ax.errorbar(
            [group.n_tokens], [sample.mean], yerr=[half], label=label, markersize=4, capsize=2,
            **{**style, "linestyle": ""},
        )  # fmt: skip
    if trend.fit.reason or TOKENS not in trend.terms or not groups:
        return
    first, last = (math.log2(end(group.n_tokens for group in trend.groups)) for end in (min, max))
    tokens = [2 ** (first + (last - first) * step / (_POINTS - 1)) for step in range(_POINTS)]
    fitted = [trend.predicted(setup.n_params, count) for count in tokens]
    ax.plot(tokens, [value for value, _ in fitted], **{**style, "marker": ""}, linewidth=1)
    lower, upper = [value - half for value, half in fitted], [value + half for value, half in fitted]
    ax.fill_between(tokens, lower, upper, color=style["color"], alpha=0.15, linewidth=0)


def trend_figure(study: StudyResults, table: str) -> "Figure":
    """Draw the differences in loss of a table, a panel for each size, with 95 % intervals."""
    from matplotlib.figure import Figure

    groups, styles = study.groups[table], optimizer_styles(study.plan)
    setups = {group.setup: group.model_label for group in sorted(groups, key=lambda group: group.setup.n_params)}
    labels = {key: plain(label) for group in groups for key, label in group.optimizer_labels.items()}
    found = trends(study, table, [METRICS[LOSS]])
    below = len(setups) > (1 if is_narrow() else 4)
    n_rows, n_columns = (len(setups), 1) if below else (1, len(setups))
    figure = Figure(figsize=(page_width(), 0.6 + 2 * n_rows), layout="constrained")
    axes = figure.subplots(n_rows, n_columns, squeeze=False, sharex="col", sharey=True).flat
    for ax, (setup, model_label) in zip(axes, setups.items(), strict=True):
        for trend in found:
            _draw(ax, study, trend, setup, labels[trend.optimizer], styles[trend.optimizer])
        ticks = {group.n_tokens: plain(group.tokens_label) for group in groups if group.setup == setup}
        ax.axhline(0, color="0.7", linewidth=0.8, zorder=0)
        ax.set_xscale("log")
        ax.set_xticks(list(ticks), labels=list(ticks.values()))
        ax.minorticks_off()
        ax.set_xlabel("D (tokens)")
        ax.set_title(f"N = {plain(model_label)}")
    if len({trend.reference for trend in found}) == 1:
        axes[0].set_ylabel(f"loss minus that of {labels[found[0].reference]} (nat/token)", fontsize=8)
    add_legend(figure)
    return figure
