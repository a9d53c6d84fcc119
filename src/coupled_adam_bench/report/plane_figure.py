"""The figure of the runs in the plane of training tokens and parameters, Fig. 6 of the paper."""

from typing import TYPE_CHECKING

from coupled_adam_bench.report.style import STYLES, add_legend, panels, plain
from coupled_adam_bench.results.groups import Layout
from coupled_adam_bench.study.cells import Cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOKENS_PER_PARAMETER = 20
"""The paper's line N = D/20 [P], Fig. 6: about where training takes least compute (Hoffmann et al. 2022)."""
_NO_TABLE = "no table"


def _places(layout: Layout) -> dict[str, list[tuple[int, int]]]:
    """Return (tokens, parameters) of the cells by the title of the first table that has them, each place once."""
    title_of: dict[tuple[int, int], str] = {}
    for name, groups in layout.groups.items():
        for group in groups:
            title_of.setdefault((group.n_tokens, group.setup.n_params), layout.tables[name].title)
    places: dict[str, list[tuple[int, int]]] = {}
    cells: dict[tuple[int, int], Cell] = {}
    for cell in layout.plan.cells.values():
        cells.setdefault((cell.n_tokens, cell.n_params), cell)
    for place in sorted(cells):
        places.setdefault(title_of.get(place, _NO_TABLE), []).append(place)
    return places


def plane(layout: Layout) -> "Figure":
    """Draw parameters against tokens, a point for each place with runs, and the line N = D/20."""
    figure, (ax,) = panels(1, 1, height=3.0)
    points = _places(layout)
    for (title, places), style in zip(points.items(), STYLES * len(points), strict=False):
        ax.plot(*zip(*places, strict=True), label=plain(title), **{**style, "linestyle": "", "markersize": 6})
    ax.set_xscale("log")
    ax.set_yscale("log")
    tokens = [place[0] for places in points.values() for place in places]
    ends = (min(tokens) / 2, max(tokens) * 2)
    line = [end / TOKENS_PER_PARAMETER for end in ends]
    ax.plot(ends, line, color="0.5", linewidth=0.8, zorder=0, label=f"N = D/{TOKENS_PER_PARAMETER}")
    ax.set_xlabel("D (tokens)")
    ax.set_ylabel("N (parameters)")
    add_legend(figure)
    return figure
