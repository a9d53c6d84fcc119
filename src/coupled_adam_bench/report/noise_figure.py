"""The figure of where the spread of a number comes from: a line for each group of runs, a point for each source."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.report.noise import NoiseGroup, noise_groups, root
from coupled_adam_bench.report.style import STYLES, add_legend, axis_label, is_narrow, page_width, plain
from coupled_adam_bench.results.study_results import StudyResults
from coupled_adam_bench.statistics.noise import EVALUATION, INIT, ORDER, REST, SEEDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRICS = ("loss", "acc", "isotropy", "r_bar")
_SOURCES = (SEEDS, INIT, ORDER, REST, EVALUATION)
_BESIDE = 0.15  # distance of the sources' points in a line


def _draw(ax: "Axes", groups: list[NoiseGroup], metric: str) -> None:
    for index, source in enumerate(_SOURCES):
        found = [(line, row) for line, group in enumerate(groups) for row in group.rows.get(metric, [])]
        points: list[tuple[int, dict[str, Any]]] = [
            (line, row) for line, row in found if row["source"] == source and not math.isnan(row["variance"])
        ]
        if points:
            sds = [root(row["variance"]) for _, row in points]
            # Without an interval a point has no bar.
            low = [max(0.0, sd - root(row["low"])) for sd, (_, row) in zip(sds, points, strict=True)]
            high = [max(0.0, root(row["high"]) - sd) for sd, (_, row) in zip(sds, points, strict=True)]
            lines = [line + _BESIDE * (index - (len(_SOURCES) - 1) / 2) for line, _ in points]
            style: Any = {**STYLES[index], "linestyle": ""}
            ax.errorbar(sds, lines, xerr=(low, high), label=source, markersize=4, capsize=2, elinewidth=0.8, **style)


def noise_figure(study: StudyResults, path: Path | None) -> "Figure":
    """Draw the standard deviation of each source for each group of runs (lines) and the main metrics (columns)."""
    from matplotlib.figure import Figure

    groups = noise_groups(study, path) if path is not None else []
    metrics = [study.layout.metrics[name] for name in METRICS if name in study.layout.metrics]
    n_panels = max(1, len(metrics))
    n_rows, n_columns = (n_panels, 1) if is_narrow() else (1, n_panels)
    height = 0.5 + 0.34 * max(3, len(groups))
    figure = Figure(figsize=(page_width(), 0.7 + height * n_rows), layout="constrained")
    axes = list(figure.subplots(n_rows, n_columns, squeeze=False, sharey=True).flat)
    for ax, metric in zip(axes, metrics, strict=False):
        _draw(ax, groups, metric.name)
        ax.set_xlabel(f"sd of {axis_label(metric)}")
        ax.set_xlim(left=0)
    labels = [plain(f"{group.title}, {group.optimizer}\n{group.design}") for group in groups]
    for ax in axes:  # those of a row share their labels
        ax.set_yticks(range(len(groups)), labels=labels, fontsize=6)
    axes[0].invert_yaxis()
    add_legend(figure)
    return figure
