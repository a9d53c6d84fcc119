"""The colours, markers, line styles, fonts and legend that all figures share."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coupled_adam_bench.study.catalog.metrics import Metric
from coupled_adam_bench.study.plan import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEXT_INCHES, COLUMN_INCHES = 6.9, 3.3
"""The widths of a figure for both columns of an article, and for one of them."""

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
    "axes.titlesize": "medium",
    "pdf.fonttype": 42,  # TrueType: conferences refuse Type 3, and editors cannot change its text
    "figure.figsize": (TEXT_INCHES, 3.2),
    # Whatever the user's own matplotlibrc says: labels are no LaTeX, and figures say how they are laid out.
    "text.usetex": False,
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
}


IN_COLUMN = RC | {"figure.figsize": (COLUMN_INCHES, 2.4), "font.size": 8}
"""The settings of a figure for one column."""


def page_width() -> float:
    """Return the width in inches that figures have under matplotlib's current settings."""
    from matplotlib import rcParams

    return float(rcParams["figure.figsize"][0])


def is_narrow() -> bool:
    """Tell whether figures are drawn for one column, where panels stand below each other."""
    return page_width() < (TEXT_INCHES + COLUMN_INCHES) / 2


def panels(n_rows: int, n_columns: int, height: float = 2.6, **options: Any) -> "tuple[Figure, Sequence[Any]]":
    """Return a figure of the page's width and its panels row by row, each of about ``height`` inches.

    In one column all panels stand below each other.
    """
    from matplotlib.figure import Figure

    if is_narrow():
        n_rows, n_columns, height = n_rows * n_columns, 1, 0.8 * height
    figure = Figure(figsize=(page_width(), 0.5 + height * n_rows), layout="constrained")
    return figure, list(figure.subplots(n_rows, n_columns, squeeze=False, **options).flat)


def _style(index: int) -> dict[str, str]:
    """Return the style of an optimizer by its number; after as many as there are colours, markers are hollow."""
    cycle, place = divmod(index, len(STYLES))
    if cycle % 2 == 0:
        return STYLES[place]
    return STYLES[place] | {"markerfacecolor": "white", "linestyle": STYLES[(place + 1) % len(STYLES)]["linestyle"]}


def optimizer_styles(plan: Plan) -> dict[str, dict[str, str]]:
    """Return a style per optimizer of the study, the same in all figures."""
    keys = dict.fromkeys(cell.optimizer.key for cell in plan.cells.values())
    return {key: _style(index) for index, key in enumerate(keys)}


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
        # A line and its gaps take 0.6 in, and a letter 0.08 in.
        fitting = int(figure.get_figwidth() / (0.6 + 0.08 * max(map(len, labels))))
        columns = min(len(labels), max(fitting, 1))
        figure.legend(
            labels.values(), labels.keys(), loc="outside upper center", ncols=columns, frameon=False, title=title
        )
