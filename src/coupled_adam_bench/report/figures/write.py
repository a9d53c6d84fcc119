"""Draws the figures of a study and writes their files."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from coupled_adam_bench.records.stored import named
from coupled_adam_bench.report.figures import FIGURE_ENDINGS, FIGURES, figures_of
from coupled_adam_bench.report.plug_ins import draw_own, own_figures
from coupled_adam_bench.statistics.declared import Material

if TYPE_CHECKING:  # a report without figures needs no matplotlib
    from matplotlib.figure import Figure


def drawn(material: Material) -> "dict[str, Figure]":
    """Return the figures of a study by name, in the width of matplotlib's current settings."""
    own = own_figures(material.plan)
    found = {}
    for name in figures_of(material.plan):
        if name in own:
            found[name] = draw_own(name, own[name], material)
        else:
            found[name] = named(FIGURES[name].draw)(material)
    return found


def write_figures(
    material: Material, out_dir: Path, wanted: Collection[str] = FIGURE_ENDINGS
) -> None:
    """Write every name in :func:`.figures_of` with each ending that is ``wanted``, atomically and
    without a date."""
    from coupled_adam_bench.report.figures.files import lay_out, save, say_no_data
    from coupled_adam_bench.report.figures.style import IN_COLUMN, RC, drawing_with

    for settings, all_endings in ((RC, FIGURE_ENDINGS[:2]), (IN_COLUMN, FIGURE_ENDINGS[2:])):
        endings = [ending for ending in all_endings if ending in wanted]
        if not endings:
            continue
        with drawing_with(settings):
            for name, figure in drawn(material).items():
                say_no_data(figure.axes)
                # By the first kind, wanted or not: a file is the same whatever others are written.
                lay_out(figure, _kind(all_endings[0]))
                for ending in endings:
                    save(figure, out_dir / f"{name}.{ending}", _kind(ending))


def _kind(ending: str) -> str:
    """Return matplotlib's name of the format of files with this ending."""
    return ending.rpartition(".")[2]
