"""A plug-in (docs/plugins.md): where differences in loss lie, the numbers of ``shares.csv``.

statistics:
  figures:
    - {name: loss_shares, path: research.plugins.loss_shares.LossShares}
"""

import math
from typing import Any, ClassVar

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from coupled_adam_bench.report.figures import largest_size
from coupled_adam_bench.report.figures.style import add_legend, grid
from coupled_adam_bench.report.plug_ins import FigurePlugIn
from coupled_adam_bench.results.groups import GROUP_COLUMNS
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.statistics.shares import LABELS, WHOLE
from coupled_adam_bench.statistics.shares import STATISTIC as SHARES


def _shares_of_largest(material: Material) -> list[dict[str, Any]]:
    """Return the rows of shares.csv on the largest size at most tokens, of the first table that has
    it."""
    cell = largest_size(material.study.layout).cells[0]
    setup = material.study.layout.setups[cell.id]
    place = (setup.n_params, cell.n_tokens, setup.model, setup.data, setup.recipe)
    where = dict(zip(GROUP_COLUMNS[1:], place, strict=True))
    rows = [row for row in material.rows(SHARES) if where.items() <= row.items()]
    return [row for row in rows if row["table"] == rows[0]["table"] and not row["reason"]]


class LossShares(FigurePlugIn):
    """The parts of each difference in loss by band of frequency, for the largest size."""

    contract = 1
    caption: ClassVar[str] = (
        "Where the difference in loss to the first optimizer lies: the part of each band of"
        " frequency, rarest tokens first, and the whole (dot) with its 95 % interval over seeds."
    )

    def draw(self, material: Material) -> Figure:
        """Return the figure, a bar for each optimizer whose parts lie to both sides of 0."""
        shown, rows = largest_size(material.study.layout), _shares_of_largest(material)
        keys = list(dict.fromkeys(row["optimizer"] for row in rows))
        colors = dict(
            zip(LABELS, colormaps["cividis"](np.linspace(0, 1, len(LABELS))), strict=True)
        )
        figure, ((ax,),) = grid(1, 1, 1.3 + 0.3 * len(keys))
        # Parts of one sign lie end to end, so that each bar is as long as the part.
        ends = {key: {-1: 0.0, 1: 0.0} for key in keys}
        for row in rows:
            place, difference = keys.index(row["optimizer"]), row["difference"]
            if row["band"] == WHOLE:
                spread = [[difference - row["low"]], [row["high"] - difference]]
                ax.errorbar([difference], [place], xerr=spread, fmt="o", color="k", capsize=2, ms=4)
            elif row["tokens"] > 0 and math.isfinite(difference):
                sign = 1 if difference > 0 else -1
                start, color = ends[row["optimizer"]][sign], colors[row["band"]]
                ax.barh(
                    place, difference, 0.6, start, color=color, label=LABELS[row["band"]], zorder=0
                )
                ends[row["optimizer"]][sign] += difference
        ax.axvline(0, color="0.7", linewidth=0.8, zorder=0)
        ax.set_yticks(range(len(keys)), labels=[shown.labels[key] for key in keys])
        ax.invert_yaxis()
        if rows:
            reference = shown.labels[rows[0]["reference"]]
            ax.set(xlabel=f"loss minus that of {reference} (nat/token)", title=shown.title)
        add_legend(figure)
        return figure
