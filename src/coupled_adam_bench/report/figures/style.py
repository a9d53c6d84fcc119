"""What all figures share: colours and fonts, panels, legends, and bars over seeds."""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from matplotlib import rcParams
from matplotlib import style as matplotlib_style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from coupled_adam_bench.page.formats import shorthand
from coupled_adam_bench.report.figures import plain
from coupled_adam_bench.results.groups import Group
from coupled_adam_bench.results.sample import Sample, summarize
from coupled_adam_bench.study.catalogue.metrics import Metric
from coupled_adam_bench.study.plan import Plan

TEXT_INCHES, COLUMN_INCHES = 6.29, 3.03
"""The widths of a figure for both columns of an article, and for one of them: those of ACL, the
paper's venue, are 455 and 219 TeX points, and those of LaTeX's `article` are wider."""
MAX_INCHES, MAX_COLUMN_INCHES = 8.5, 2.49
"""The height that a page of an article leaves to a figure, and what one in a column takes of it,
180 TeX points."""
MOST_ROWS, MOST_COLUMN_ROWS, ROW_INCHES = 6, 3, 0.8
"""The rows of panels that have room in these heights, and the height of each where there are
more."""

Style = Mapping[str, Any]
# Okabe and Ito's palette, safe for colour-blind readers; markers and line styles tell lines apart
# in print.
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
}
IN_COLUMN = RC | {"figure.figsize": (COLUMN_INCHES, 2.4), "font.size": 7}
"""The settings of a figure for one column."""


def drawing_with(settings: Style) -> AbstractContextManager[None]:
    """Let matplotlib draw with its own defaults and these ``settings``, whatever a matplotlibrc of
    the user has."""
    context: AbstractContextManager[None] = matplotlib_style.context(
        dict(settings), after_reset=True
    )
    return context


def page_width() -> float:
    """Return the width in inches that figures have under matplotlib's current settings."""
    return float(rcParams["figure.figsize"][0])


def _in_column() -> bool:
    """Tell whether figures under matplotlib's current settings are for one column."""
    return page_width() < (TEXT_INCHES + COLUMN_INCHES) / 2


def grid(n_rows: int, n_columns: int, inches: float, **shared: Any) -> tuple[Figure, Any]:
    """Return a figure of the page's width and a height of at most ``inches``, and its axes as an
    array of two dimensions."""
    highest, most_rows = MAX_INCHES, MOST_ROWS
    if _in_column():
        highest, most_rows = MAX_COLUMN_INCHES, MOST_COLUMN_ROWS
    if n_rows > most_rows:
        highest = max(highest, ROW_INCHES * n_rows)
    figure = Figure(figsize=(page_width(), min(inches, highest)), layout="constrained")
    return figure, figure.subplots(n_rows, n_columns, squeeze=False, **shared)


def panels(
    n: int, columns: int = 2, height: float = 2.6, **shared: Any
) -> tuple[Figure, Sequence[Any]]:
    """Return a figure of the page's width and its ``n`` panels row by row, each of about ``height``
    inches.

    In a figure for one column two panels stand below each other, and more in the columns of the
    large figure.
    """
    if _in_column() and n <= 2:
        columns = 1
    columns = min(columns, n)
    n_rows = -(-n // columns)
    figure, axes = grid(n_rows, columns, 0.5 + height * n_rows, **shared)
    for unused in axes.flat[n:]:
        unused.remove()
    return figure, list(axes.flat[:n])


def _style(index: int) -> dict[str, str]:
    """Return the style of an optimizer by its number; after as many as there are colours, markers
    are hollow."""
    cycle, place = divmod(index, len(STYLES))
    if cycle % 2 == 0:
        return STYLES[place]
    return STYLES[place] | {
        "markerfacecolor": "white",
        "linestyle": STYLES[(place + 1) % len(STYLES)]["linestyle"],
    }


def optimizer_styles(plan: Plan) -> dict[str, dict[str, str]]:
    """Return a style per optimizer of the study, the same in all figures."""
    keys = dict.fromkeys(cell.optimizer.key for cell in plan.cells.values())
    return {key: _style(index) for index, key in enumerate(keys)}


def thin(style: Style) -> dict[str, Any]:
    """Return the style of a thin line without markers."""
    return {name: value for name, value in style.items() if name != "marker"} | {"linewidth": 0.8}


def axis_label(metric: Metric, arrow: bool = False) -> str:
    """Return the symbol of a metric with its unit, and with the arrow of its direction if it is
    asked for."""
    label = metric.latex if metric.unit == "1" else f"{metric.latex} ({metric.unit})"
    return f"{label} {metric.latex_arrow}" if arrow else label


def curve(
    ax: Axes, points: Sequence[tuple[float, float]], label: str | None = None, **style: Any
) -> None:
    """Draw points as a line, nothing if there are none."""
    if points:
        ax.plot(*zip(*points, strict=True), label=label, **style)


def bars(
    ax: Axes,
    x: Sequence[float],
    samples: Sequence[Sequence[float]],
    label: str | None,
    **style: Any,
) -> None:
    """Draw the means of samples over seeds, each with a bar of its standard deviation."""
    found = [summarize(sample) for sample in samples]
    drawn = {"yerr": [sample.sd for sample in found], "markersize": 4, "capsize": 2, **style}
    ax.errorbar(x, [sample.mean for sample in found], label=label, **drawn)


_SHARE_OF_BARS = 0.72
"""The share of a panel's width that its bars take at most; the numbers stand next to the bars."""


def optimizer_bars(
    ax: Axes, samples: Mapping[str, Sample], metric: Metric, styles: Mapping[str, Style]
) -> None:
    """Draw the means of optimizers over seeds by their labels, as bars from zero with their
    standard deviations.

    The numbers stand next to the bars: losses differ by less than a reader sees in bars.
    """
    for place, (label, sample) in enumerate(samples.items()):
        color = styles[label]["color"]
        ax.barh(place, sample.mean, xerr=sample.sd, color=color, alpha=0.7, capsize=2)
        number = str(shorthand(sample, metric.digits))
        beside: Style = {"transform": ax.get_yaxis_transform(), "ha": "right", "va": "center"}
        ax.text(0.99, place, number, **beside, fontsize="small")
    ax.set_yticks(range(len(samples)), labels=list(samples))
    ax.invert_yaxis()
    ends = [sample.mean for sample in samples.values() if math.isfinite(sample.mean)]
    if ends:
        ax.set_xlim(0, max(ends) / _SHARE_OF_BARS)


def zero_line(ax: Axes) -> None:
    """Draw a thin grey line where there is no difference."""
    ax.axhline(0, color="0.7", linewidth=0.8, zorder=0)


def tokens_axis(ax: Axes, groups: Sequence[Group]) -> None:
    """Let an axis have the numbers of tokens of groups as tables print them, on a log scale."""
    ticks = {group.n_tokens: plain(group.tokens_label) for group in groups}
    ax.set_xscale("log")
    ax.set_xticks(list(ticks), labels=list(ticks.values()))
    ax.minorticks_off()


def cut_off(ax: Axes, guessing: float) -> None:
    """Cut an axis of losses off at 1.5 times the loss of ``guessing``: a run that blows up would
    squeeze the others."""
    low, high = ax.dataLim.intervaly
    if low < guessing and high > 1.5 * guessing:
        ax.set_ylim(0.97 * low, 1.5 * guessing)


def name_shared_axes(figure: Figure) -> None:
    """Leave the label of an axis that all panels of a column share to the lowest of them."""
    columns: dict[int, list[Axes]] = {}
    for ax in figure.axes:
        if place := ax.get_subplotspec():
            columns.setdefault(place.colspan.start, []).append(ax)
    for column in columns.values():
        if len({ax.get_xlabel() for ax in column}) == 1:
            for ax in column[:-1]:
                ax.set_xlabel("")


_OF_ALL = "0.25"
"""The grey of a sign in a legend that stands for all colours."""


def add_legend(figure: Figure, signs: Mapping[str, Style] | None = None) -> None:
    """Put one legend above a figure, each label of its axes once.

    ``signs`` are what dots and lines of all colours mean, each with its style.
    """
    name_shared_axes(figure)
    labels: dict[str, Any] = {}
    for ax in figure.axes:
        handles, names = ax.get_legend_handles_labels()
        labels.update(zip(names, handles, strict=True))
    for name, style in (signs or {}).items():
        labels[name] = Line2D([], [], **{"color": _OF_ALL, "markersize": 4, **style})
    if labels:
        # At 9 points a line and its gaps take 0.6 in, and a letter 0.08 in or, of many, 0.07 in.
        scale = rcParams["font.size"] / RC["font.size"]
        letter = 0.07 if _in_column() else 0.08
        inches = scale * (0.6 + letter * max(map(len, labels)))
        fitting = int(figure.get_figwidth() / inches)
        columns = min(len(labels), max(fitting, 1))
        figure.legend(
            labels.values(),
            labels.keys(),
            loc="outside upper center",
            ncols=columns,
            frameon=False,
        )
