"""A plug-in (docs/plugins.md): isotropy and mean embedding against the sum of the learning rates so
far.

    statistics:
      figures:
        - {name: geometry_by_rates, path: research.plugins.geometry_by_rates.GeometryByRates}
"""

from typing import Any, ClassVar

from matplotlib.figure import Figure

from coupled_adam_bench.report.figures import largest_size
from coupled_adam_bench.report.figures.histories import draw_mean
from coupled_adam_bench.report.figures.style import (
    add_legend,
    axis_label,
    optimizer_styles,
    panels,
)
from coupled_adam_bench.report.plug_ins import FigurePlugIn
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.store.runs import run_history
from coupled_adam_bench.study.catalogue.metrics import METRICS
from coupled_adam_bench.study.plan import Plan


class GeometryByRates(FigurePlugIn):
    """Isotropy and mean-norm ratio of the largest size, on a log scale of the sum of rates."""

    contract = 1
    caption: ClassVar[str] = (
        "Isotropy and mean embedding against the sum of the learning rates of the head so far."
    )

    def check(self, plan: Plan) -> None:
        """Refuse studies that measure no geometry along training."""
        if not any(study.execution.geometry_per_decade for study in plan.studies.values()):
            raise ValueError(
                "no study measures the geometry along training; give"
                " execution.geometry_per_decade a number such as 4, or leave out the plug-in"
            )

    def draw(self, material: Material) -> Figure:
        """Return the figure, whose bands are standard deviations over seeds."""
        shown, styles = largest_size(material.study.layout), optimizer_styles(material.plan)
        histories: dict[str, list[list[dict[str, Any]]]] = {}
        for cell in shown.cells:
            rows = [dict(row) for row in run_history(material.runs / cell.id) if "rate_sum" in row]
            histories.setdefault(cell.optimizer.key, []).append(rows)
        figure, axes = panels(2)
        for ax, name in zip(axes, ("isotropy", "mean_norm_ratio"), strict=True):
            for key, of_seeds in histories.items():
                style = {**styles[key], "markersize": 3, "linewidth": 0.8}
                draw_mean(ax, of_seeds, name, shown.labels[key], style, "rate_sum")
            ax.set(xlabel="sum of learning rates", ylabel=axis_label(METRICS[name]))
            ax.set(title=shown.title, ylim=(0, 1.02))
            if ax.has_data():
                ax.set_xscale("log")
        add_legend(figure)
        return figure
