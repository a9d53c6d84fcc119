"""The colours, markers, line styles, fonts and legend that all figures share."""

from typing import TYPE_CHECKING, Any

from coupled_adam_bench.catalog.metrics import Metric
from coupled_adam_bench.plan import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, safe for colour-blind readers; markers and line styles tell lines apart in print.
STYLES = (
    {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    {"color": "#009E73", "marker": "^", "linestyle": ":"},
    {"color": "#CC79A7", "marker": "D", "linestyle": "-."},
    {"color": "#E69F00", "marker": "v", "linestyle": "-"},
    {"color": "#56B4E9", "marker": "P", "linestyle": "--"},
    {"color": "#000000", "marker": "X", "linestyle": ":"},
)
RC = {
    "svg.hashsalt": "coupled-adam-bench",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.usetex": False,  # whatever the user's own matplotlibrc says: labels are no LaTeX
}


def optimizer_styles(plan: Plan) -> dict[str, dict[str, str]]:
    """Return a style per optimizer of the study, the same in all figures."""
    keys = dict.fromkeys(cell.optimizer.key for cell in plan.cells.values())
    return {key: STYLES[index % len(STYLES)] for index, key in enumerate(keys)}


def axis_label(metric: Metric) -> str:
    """Return the symbol of a metric with its unit."""
    return metric.latex if metric.unit == "1" else f"{metric.latex} ({metric.unit})"


def plain(text: str) -> str:
    """Return a study's label so that matplotlib prints it and does not read formulas in it."""
    return text.replace("$", r"\$")


def add_legend(figure: "Figure", title: str | None = None) -> None:
    """Put one legend above a figure, each label of its axes once, under a title that holds for all of them."""
    labels: dict[str, Any] = {}
    for ax in figure.axes:
        handles, names = ax.get_legend_handles_labels()
        labels.update(zip(names, handles, strict=True))
    if labels:
        figure.legend(
            labels.values(), labels.keys(), loc="outside upper center", ncols=len(labels), frameon=False, title=title
        )
