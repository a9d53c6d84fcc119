"""A plug-in (docs/plugins.md): calibration against how often tokens are in the training text.

statistics:
  figures:
    - {name: calibration, path: research.plugins.calibration.Calibration}
"""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

from coupled_adam_bench.study.catalogue.bands import BANDS
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coupled_adam_bench.report.figures import largest_size
from coupled_adam_bench.report.figures.curves import Points, details, differences
from coupled_adam_bench.report.figures.style import (
    add_legend,
    curve,
    optimizer_styles,
    panels,
    thin,
    zero_line,
)
from coupled_adam_bench.report.plug_ins import FigurePlugIn
from coupled_adam_bench.statistics.declared import Material
from coupled_adam_bench.study.catalogue.metrics import METRICS
from coupled_adam_bench.study.plan.cells import Cell


def seen(calibration: Mapping[str, Sequence[Any]], kind: str) -> Points:
    """Return (count, value) of the bins of seen tokens that have a value of this kind."""
    pairs = zip(calibration["count"], calibration[kind], strict=True)
    return [(count, value) for count, value in pairs if count and value is not None]


_TEXT_S_OWN = "the training text's own frequencies"
_REFERENCE = {"color": "0.25", "linewidth": 1.2, "linestyle": (0, (4, 2))}


def _draw_text_s_own(ax: Axes, material: Material, cells: Collection[Cell]) -> None:
    """Draw over the counts of each band the calibration of the training text's own frequencies.

    A model can be expected there, and not at 0: rare tokens of one text are rarer in another. The
    text is the same for all cells, so the first of them tells.
    """
    for cell, bands in islice(details(material, cells, "test_loss", "bands"), 1):
        own = {
            band.name: material.study.best(cell.id, METRICS[band.pooled_calibration])
            for band in BANDS
        }
        for band in bands:
            counts, value = band["training_counts"], own.get(band["band"], math.nan)
            if counts is not None and math.isfinite(value):
                curve(ax, [(count, value) for count in counts], _TEXT_S_OWN, **_REFERENCE)


class Calibration(FigurePlugIn):
    """The pooled calibration, and the mean over tokens against that of the first optimizer."""

    contract = 1
    caption: ClassVar[str] = (
        "Log of how probable tokens are over how often they are there, by their count in the"
        " training text: all tokens of a count together, beside what a model with the training"
        " text's own frequencies has in each band, and the mean over tokens minus that of the first"
        " optimizer; a line per seed."
    )

    def draw(self, material: Material) -> Figure:
        """Return the figure of the largest size.

        Cells that were measured on the same text have the same bins, and the frequencies in it
        cancel.
        """
        shown, styles = largest_size(material.study.layout), optimizer_styles(material.plan)
        found: dict[str, dict[int, Any]] = {key: {} for key in shown.labels}
        for cell, detail in details(material, shown.cells, "test_loss", "calibration"):
            found[cell.optimizer.key][cell.seed] = detail
        # The mean over tokens is read beside the first optimizer's alone: its level is the text's.
        first = next(iter(found))
        figure, axes = panels(2)
        for key, by_seed in found.items():
            label, style = shown.labels[key], thin(styles[key])
            for seed, detail in by_seed.items():
                curve(axes[0], seen(detail, "pooled_log_ratio"), label, **style)
                if seed in found[first]:
                    means = (seen(each, "mean_log_ratio") for each in (detail, found[first][seed]))
                    curve(axes[1], differences(*means), label, **style)
        _draw_text_s_own(axes[0], material, shown.cells)
        labels = (
            r"log $\bar{p} / \bar{f}$ (0: calibrated)",
            f"mean log p, minus {shown.labels[first]}",
        )
        for ax, label in zip(axes, labels, strict=True):
            zero_line(ax)
            ax.set_xscale("log")
            ax.set(
                xlabel="occurrences of the token in the training text",
                ylabel=label,
                title=shown.title,
            )
        add_legend(figure)
        return figure
